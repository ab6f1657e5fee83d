"""Rounding of a layer's input: `torch`, eagerly; `compiled`, one kernel by torch.compile, as vLLM runs it between other
compiled operators; `vllm`, its own kernels (from an environment that has vLLM), which it takes for groups and int8."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, Unsupported, compiled, normal
from chip.measure.vllm_ops import QUANTISATION, custom_ops, module, scales
from chip.ops.quantize import Quantize

FP8_MOST = 448.0
INT8_MOST = 127.0
LEAST_SCALE = 1.0 / (FP8_MOST * 512.0)


def implementations(op: Quantize, device_type: str) -> tuple[str, ...]:
    return ("torch", "compiled") if device_type == "cpu" else ("compiled", "torch", "vllm")


def rounded(x: torch.Tensor, group: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """fp8 with a scale for each row, or for each group of it."""
    parts = x.float() if not group else x.float().unflatten(-1, (-1, group))
    scale = (parts.abs().amax(-1, keepdim=True) / FP8_MOST).clamp(min=LEAST_SCALE)
    values = (parts * scale.reciprocal()).clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn)
    return values.view(x.shape), scale.squeeze(-1)


def by_row(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rounded(x)


def by_128(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rounded(x, 128)


def with_scale(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return (x.float() * scale.reciprocal()).clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn)


def build(op: Quantize, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    if op.to not in ("fp8", "int8"):
        raise Unsupported(f"rounding to {op.to} is not called here")
    if implementation == "vllm":
        return _vllm(op, device, generator)
    if op.to == "int8":
        raise Unsupported("int8 roundings are vLLM's own kernels")
    function = {0: by_row, 128: by_128}.get(op.group)
    if function is None or (op.per_tensor and not op.static):
        raise Unsupported("roundings are compiled by row, by groups of 128, or with a given scale")
    rows = max(2, op.rows) if implementation == "compiled" else op.rows
    x = normal((rows, op.cols), op.dtype, device, generator)
    if op.static:
        one = scales((1,), torch.float32, device, generator)
        return compiled(with_scale, (x,), (one,)) if implementation == "compiled" else lambda: with_scale(x, one)
    return compiled(function, (x,)) if implementation == "compiled" else lambda: function(x)


def _vllm(op: Quantize, device: torch.device, generator: torch.Generator) -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    one = scales((1,), torch.float32, device, generator) if op.static else None
    if op.to == "int8":
        ops = custom_ops("scaled_int8_quant", "dynamic_scaled_int8_quant")
        return lambda: ops.scaled_int8_quant(x, one)
    if op.group:
        quant = module(f"{QUANTISATION}.fp8_utils", "per_token_group_quant_fp8").per_token_group_quant_fp8
        return lambda: quant(x, op.group, column_major_scales=True, use_ue8m0=False)
    ops = custom_ops("scaled_fp8_quant", "dynamic_per_token_scaled_fp8_quant")
    return lambda: ops.scaled_fp8_quant(x, one, use_per_token_if_dynamic=not op.per_tensor)
