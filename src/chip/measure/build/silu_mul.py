"""F.silu(x) * y, two kernels: what an eager model runs between its gate and down projections."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, normal
from chip.ops.silu_mul import SiluMul


def build(op: SiluMul, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    y = normal((op.rows, op.cols), op.dtype, device, generator)
    return lambda: F.silu(x) * y
