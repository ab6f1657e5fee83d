"""Residual addition, RMS norm and the rounding of its result, as `rms_norm_quant`; the sum is a result too."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, compiled, normal
from chip.measure.build.add_rms_norm import add_norm
from chip.measure.build.quantize import rounded
from chip.measure.build.rms_norm_quant import check, in_vllm
from chip.ops.add_rms_norm_quant import AddRmsNormQuant

Rounded = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def implementations(op: AddRmsNormQuant, device_type: str) -> tuple[str, ...]:
    return ("compiled", "torch") if device_type == "cpu" else ("compiled", "torch", "vllm")


def by_row(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> Rounded:
    normed, total = add_norm(x, y, weight)
    return (*rounded(normed), total)


def by_128(x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor) -> Rounded:
    normed, total = add_norm(x, y, weight)
    return (*rounded(normed, 128), total)


def build(op: AddRmsNormQuant, device: torch.device, generator: torch.Generator, implementation: str = "") -> Closure:
    check(op.to, op.group)
    rows = max(2, op.rows) if implementation == "compiled" else op.rows
    x, y = (normal((rows, op.cols), op.dtype, device, generator) for _ in range(2))
    weight = normal((op.cols,), op.dtype, device, generator)
    if implementation == "vllm":
        return in_vllm(x, weight, op.group, residual=y)
    function = by_128 if op.group else by_row
    return compiled(function, (x, y), (weight,)) if implementation == "compiled" else lambda: function(x, y, weight)
