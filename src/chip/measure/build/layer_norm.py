"""F.layer_norm with weight and bias; `compiled` by torch.compile, one kernel, as vLLM runs it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, compiled, normal
from chip.ops.layer_norm import LayerNorm


def implementations(op: LayerNorm, device_type: str) -> tuple[str, ...]:
    return ("torch", "compiled")


def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, weight.shape, weight, bias)


def build(op: LayerNorm, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    rows = max(2, op.rows) if implementation == "compiled" else op.rows
    x = normal((rows, op.cols), op.dtype, device, generator)
    weight = normal((op.cols,), op.dtype, device, generator)
    bias = normal((op.cols,), op.dtype, device, generator)
    if implementation == "compiled":
        return compiled(norm, (x,), (weight, bias))
    return lambda: F.layer_norm(x, (op.cols,), weight, bias)
