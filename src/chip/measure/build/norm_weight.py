"""One added to a weight in fp32, as HF's Gemma calls it in each norm."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.norm_weight import NormWeight


def build(op: NormWeight, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    weight = normal((op.cols,), op.dtype, device, generator)
    return lambda: 1.0 + weight.float()
