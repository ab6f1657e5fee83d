"""Residual addition, then F.rms_norm of the sum: both are results."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, normal
from chip.ops.add_rms_norm import AddRmsNorm


def build(op: AddRmsNorm, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    y = normal((op.rows, op.cols), op.dtype, device, generator)
    weight = normal((op.cols,), op.dtype, device, generator)

    def call() -> object:
        total = x + y
        return total, F.rms_norm(total, (op.cols,), weight, 1e-6)

    return call
