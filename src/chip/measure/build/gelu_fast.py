"""GELU as HF's BLOOM spells it: nine kernels. FastGELUActivation takes the same in another order."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.gelu_fast import GeluFast


def build(op: GeluFast, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    return lambda: x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x)))
