"""x + y of two tensors."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.add import Add


def build(op: Add, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    y = normal((op.rows, op.cols), op.dtype, device, generator)
    return lambda: x + y
