"""torch.argmax over the vocabulary."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.sampling import Sampling


def build(op: Sampling, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    return lambda: torch.argmax(x, -1)
