"""Gated activation of a merged projection and the rounding of its result: `compiled`, one kernel by torch.compile, as
vLLM runs it; `vllm`, its own kernel for groups (from an environment that has vLLM)."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, Unsupported, compiled, normal
from chip.measure.build.quantize import rounded
from chip.measure.build.rms_norm_quant import check
from chip.measure.build.silu_mul import gated
from chip.measure.vllm_ops import custom_ops
from chip.ops.silu_mul_quant import SiluMulQuant


def implementations(op: SiluMulQuant, device_type: str) -> tuple[str, ...]:
    return ("compiled", "torch") if device_type == "cpu" else ("compiled", "torch", "vllm")


def by_row(merged: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rounded(gated(merged))


def by_128(merged: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rounded(gated(merged), 128)


def build(op: SiluMulQuant, device: torch.device, generator: torch.Generator, implementation: str = "") -> Closure:
    check(op.to, op.group)
    rows = max(2, op.rows) if implementation == "compiled" else op.rows
    merged = normal((rows, 2 * op.cols), op.dtype, device, generator)
    if implementation == "vllm":
        if not op.group:
            raise Unsupported("vLLM's own kernel of activation and rounding is for groups")
        ops = custom_ops("silu_and_mul_per_block_quant", "silu_and_mul_per_block_quant")
        return lambda: ops.silu_and_mul_per_block_quant(merged, op.group, torch.float8_e4m3fn, is_scale_transposed=True)
    function = by_128 if op.group else by_row
    return compiled(function, (merged,)) if implementation == "compiled" else lambda: function(merged)
