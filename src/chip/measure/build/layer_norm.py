"""F.layer_norm with weight and bias."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, normal
from chip.ops.layer_norm import LayerNorm


def build(op: LayerNorm, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    weight = normal((op.cols,), op.dtype, device, generator)
    bias = normal((op.cols,), op.dtype, device, generator)
    return lambda: F.layer_norm(x, (op.cols,), weight, bias)
