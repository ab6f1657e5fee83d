"""F.silu(x) * y, two kernels: what an eager model runs between its gate and down projections. `compiled` is one
kernel over the result of a merged projection, as vLLM runs it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure import own_ops
from chip.measure.build import Closure, compiled, normal
from chip.ops.silu_mul import SiluMul


def implementations(op: SiluMul, device_type: str) -> tuple[str, ...]:
    return ("torch", "compiled", "chip")


def gated(merged: torch.Tensor) -> torch.Tensor:
    half = merged.shape[-1] // 2
    return F.silu(merged[:, :half]) * merged[:, half:]


def build(op: SiluMul, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    if implementation == own_ops.NAME:
        return own_ops.silu_mul(op, device, generator)
    if implementation == "compiled":
        merged = normal((max(2, op.rows), 2 * op.cols), op.dtype, device, generator)
        return compiled(gated, (merged,))
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    y = normal((op.rows, op.cols), op.dtype, device, generator)
    return lambda: F.silu(x) * y
