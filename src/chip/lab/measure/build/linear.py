"""Dense layers and stacks of products by torch, and dense layers by our kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.lab.measure import own_ops
from chip.lab.measure.build import Closure, Draw, Unsupported, builds
from chip.ops.linear import Bmm, Linear


@builds("linear", gpu=("torch", "chip"), cpu=("torch",))
def linear(op: Linear, draw: Draw, implementation: str) -> Closure:
    """F.linear with a weight of n x k; fp8 as torch's scaled product with one scale a tensor."""
    if implementation == own_ops.NAME:
        return own_ops.linear(op, *draw)
    if op.weight_dtype not in ("", op.dtype):
        raise Unsupported(f"torch has no product of {op.dtype} with {op.weight_dtype} weights")
    x = draw.normal((op.m, op.k), op.dtype)
    weight = draw.normal((op.n, op.k), op.dtype)
    if op.dtype == "fp8":
        return _in_fp8(op, x, weight)
    bias = draw.normal((op.n,), op.dtype) if op.bias else None
    return lambda: F.linear(x, weight, bias)


def _in_fp8(op: Linear, x: torch.Tensor, weight: torch.Tensor) -> Closure:
    if op.bias:
        raise Unsupported("fp8 linear is measured without bias")
    one = torch.ones((), device=x.device)
    turned = weight.t()
    return lambda: torch._scaled_mm(x, turned, one, one, out_dtype=torch.bfloat16)


@builds("bmm")
def bmm(op: Bmm, draw: Draw, implementation: str) -> Closure:
    """torch.bmm of two stacks of matrices."""
    a = draw.normal((op.batch, op.m, op.k), op.dtype)
    b = draw.normal((op.batch, op.k, op.n), op.dtype)
    return lambda: torch.bmm(a, b)
