"""torch.softmax over the last axis: one kernel."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.softmax import Softmax


def build(op: Softmax, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    return lambda: torch.softmax(x, -1)
