"""F.rms_norm with weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, normal
from chip.ops.rms_norm import RmsNorm


def build(op: RmsNorm, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    weight = normal((op.cols,), op.dtype, device, generator)
    return lambda: F.rms_norm(x, (op.cols,), weight, 1e-6)
