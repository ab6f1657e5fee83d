"""torch.relu: one kernel."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.relu import Relu


def build(op: Relu, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    return lambda: torch.relu(x)
