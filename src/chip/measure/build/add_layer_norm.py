"""Residual addition, then F.layer_norm of the sum, both results; `compiled` as one kernel by torch.compile."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, compiled, normal
from chip.ops.add_layer_norm import AddLayerNorm


def implementations(op: AddLayerNorm, device_type: str) -> tuple[str, ...]:
    return ("torch", "compiled")


def norm(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + y
    return total, F.layer_norm(total, weight.shape, weight, bias)


def build(op: AddLayerNorm, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    rows = max(2, op.rows) if implementation == "compiled" else op.rows
    x, y = (normal((rows, op.cols), op.dtype, device, generator) for _ in range(2))
    weight = normal((op.cols,), op.dtype, device, generator)
    bias = normal((op.cols,), op.dtype, device, generator)
    if implementation == "compiled":
        return compiled(norm, (x, y), (weight, bias))
    return lambda: norm(x, y, weight, bias)
