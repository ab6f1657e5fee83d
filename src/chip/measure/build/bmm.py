"""torch.bmm of two stacks of matrices."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.bmm import Bmm


def build(op: Bmm, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    a = normal((op.batch, op.m, op.k), op.dtype, device, generator)
    b = normal((op.batch, op.k, op.n), op.dtype, device, generator)
    return lambda: torch.bmm(a, b)
