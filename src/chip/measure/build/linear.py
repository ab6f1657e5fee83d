"""F.linear with a weight of n x k; fp8 as torch's scaled product with one scale a tensor."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure import own_ops
from chip.measure.build import Closure, Unsupported, normal
from chip.ops.linear import Linear


def implementations(op: Linear, device_type: str) -> tuple[str, ...]:
    return ("torch",) if device_type == "cpu" else ("torch", "chip")


def build(op: Linear, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    if implementation == own_ops.NAME:
        return own_ops.linear(op, device, generator)
    if op.weight_dtype not in ("", op.dtype):
        raise Unsupported(f"torch has no product of {op.dtype} with {op.weight_dtype} weights")
    x = normal((op.m, op.k), op.dtype, device, generator)
    weight = normal((op.n, op.k), op.dtype, device, generator)
    if op.dtype == "fp8":
        return _scaled(op, x, weight, device)
    bias = normal((op.n,), op.dtype, device, generator) if op.bias else None
    return lambda: F.linear(x, weight, bias)


def _scaled(op: Linear, x: torch.Tensor, weight: torch.Tensor, device: torch.device) -> Closure:
    if op.bias:
        raise Unsupported("fp8 linear is measured without bias")
    one = torch.ones((), device=device)
    turned = weight.t()
    return lambda: torch._scaled_mm(x, turned, one, one, out_dtype=torch.bfloat16)
