"""GELU as HF's NewGELUActivation spells it: eight kernels."""

from __future__ import annotations

import math

import torch

from chip.measure.build import Closure, normal
from chip.ops.gelu_new import GeluNew


def build(op: GeluNew, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x, c = normal((op.rows, op.cols), op.dtype, device, generator), math.sqrt(2.0 / math.pi)
    return lambda: 0.5 * x * (1.0 + torch.tanh(c * (x + 0.044715 * torch.pow(x, 3.0))))
