"""RMS norm and the rounding of its result: `compiled`, one kernel by torch.compile, as vLLM runs it; `vllm`, its own
kernel, which it takes where scales cover groups (from an environment that has vLLM)."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, Unsupported, compiled, normal
from chip.measure.build.quantize import rounded
from chip.measure.build.rms_norm import norm
from chip.measure.vllm_ops import custom_ops
from chip.ops.rms_norm_quant import RmsNormQuant

EPSILON = 1e-6


def implementations(op: RmsNormQuant, device_type: str) -> tuple[str, ...]:
    return ("compiled", "torch") if device_type == "cpu" else ("compiled", "torch", "vllm")


def by_row(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rounded(norm(x, weight))


def by_128(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rounded(norm(x, weight), 128)


def build(op: RmsNormQuant, device: torch.device, generator: torch.Generator, implementation: str = "") -> Closure:
    check(op.to, op.group)
    rows = max(2, op.rows) if implementation == "compiled" else op.rows
    x = normal((rows, op.cols), op.dtype, device, generator)
    weight = normal((op.cols,), op.dtype, device, generator)
    if implementation == "vllm":
        return in_vllm(x, weight, op.group)
    function = by_128 if op.group else by_row
    return compiled(function, (x,), (weight,)) if implementation == "compiled" else lambda: function(x, weight)


def check(to: str, group: int) -> None:
    if to != "fp8" or group not in (0, 128):
        raise Unsupported("roundings after a norm or activation are called to fp8, by row or by groups of 128")


def in_vllm(x: torch.Tensor, weight: torch.Tensor, group: int, residual: torch.Tensor | None = None) -> Closure:
    fp8 = torch.float8_e4m3fn
    if group:
        ops = custom_ops("rms_norm_per_block_quant", "rms_norm_per_block_quant")
        return lambda: ops.rms_norm_per_block_quant(
            x, weight, EPSILON, fp8, [1, group], residual=residual, is_scale_transposed=True
        )
    ops = custom_ops("rms_norm_dynamic_per_token_quant", "rms_norm_dynamic_per_token_quant")
    return lambda: ops.rms_norm_dynamic_per_token_quant(x, weight, EPSILON, fp8, residual=residual)
