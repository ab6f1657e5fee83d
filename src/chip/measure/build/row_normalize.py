"""(x - mean) / std of each row, composed of torch operators."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.row_normalize import RowNormalize


def build(op: RowNormalize, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    return lambda: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
