"""Residual addition, then F.rms_norm of the sum: both are results. `compiled` is one kernel, as vLLM runs it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure import own_ops
from chip.measure.build import Closure, compiled, normal
from chip.ops.add_rms_norm import AddRmsNorm


def implementations(op: AddRmsNorm, device_type: str) -> tuple[str, ...]:
    return ("torch", "compiled", "chip")


def add_norm(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.float() + y.float()
    total = wide.to(x.dtype)
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight, total


def build(op: AddRmsNorm, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    if implementation == own_ops.NAME:
        return own_ops.add_rms_norm(op, device, generator)
    rows = max(2, op.rows) if implementation == "compiled" else op.rows
    x = normal((rows, op.cols), op.dtype, device, generator)
    y = normal((rows, op.cols), op.dtype, device, generator)
    weight = normal((op.cols,), op.dtype, device, generator)
    if implementation == "compiled":
        return compiled(add_norm, (x, y), (weight,))

    def call() -> object:
        total = x + y
        return total, F.rms_norm(total, (op.cols,), weight, 1e-6)

    return call
