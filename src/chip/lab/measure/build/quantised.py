"""Rounding, by itself or in the kernel before it, and products of narrow weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F

from chip.lab.measure.build import Closure, Draw, Unsupported, builds, compiled, torch_dtype
from chip.lab.measure.build.elementwise import EPSILON, add_rms_norm, gated, rms_norm
from chip.lab.measure.vllm_ops import (
    BITS,
    QUANTISATION,
    custom_ops,
    function,
    marlin_weight,
    module,
    packed,
    scales,
    weight_type,
)
from chip.ops.quantised import PackedLinear, Quantize, ScaledLinear, WithRounding

FP8_MOST = 448.0
LEAST_SCALE = 1.0 / (FP8_MOST * 512.0)
BLOCK, CUTLASS_STEP = 128, 16
MARLIN_GROUPS, MACHETE_GROUPS = (0, 32, 64, 128), (0, 64, 128)
MACHETE_K, MACHETE_N = 64, 128


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


@builds("quantize", gpu=("compiled", "torch", "vllm"), cpu=("torch", "compiled"))
def quantize(op: Quantize, draw: Draw, implementation: str) -> Closure:
    """Rounding of a layer's input: `torch`, eagerly; `compiled`, one kernel by torch.compile, as vLLM runs it between
    other compiled operators; `vllm`, its own kernels, which it takes for groups and int8."""
    if op.to not in ("fp8", "int8"):
        raise Unsupported(f"rounding to {op.to} is not called here")
    if implementation == "vllm":
        return _vllm_rounding(op, draw)
    if op.to == "int8":
        raise Unsupported("int8 roundings are vLLM's own kernels")
    rounding = {0: by_row, 128: by_128}.get(op.group)
    if rounding is None or (op.per_tensor and not op.static):
        raise Unsupported("roundings are compiled by row, by groups of 128, or with a given scale")
    rows = max(2, op.rows) if implementation == "compiled" else op.rows
    x = draw.normal((rows, op.cols), op.dtype)
    if op.static:
        one = scales((1,), torch.float32, *draw)
        return compiled(with_scale, (x,), (one,)) if implementation == "compiled" else lambda: with_scale(x, one)
    return compiled(rounding, (x,)) if implementation == "compiled" else lambda: rounding(x)


def _vllm_rounding(op: Quantize, draw: Draw) -> Closure:
    x = draw.normal((op.rows, op.cols), op.dtype)
    one = scales((1,), torch.float32, *draw) if op.static else None
    if op.to == "int8":
        ops = custom_ops("scaled_int8_quant", "dynamic_scaled_int8_quant")
        return lambda: ops.scaled_int8_quant(x, one)
    if op.group:
        quant = function(f"{QUANTISATION}.fp8_utils", "per_token_group_quant_fp8", "rounding by groups")
        return lambda: quant(x, op.group, column_major_scales=True, use_ue8m0=False)
    ops = custom_ops("scaled_fp8_quant", "dynamic_per_token_scaled_fp8_quant")
    return lambda: ops.scaled_fp8_quant(x, one, use_per_token_if_dynamic=not op.per_tensor)


@builds("scaled_linear", gpu=("torch", "cutlass", "triton", "deepgemm"))
def scaled_linear(op: ScaledLinear, draw: Draw, implementation: str) -> Closure:
    """Products of quantised operands: `torch`, torch._scaled_mm; as vLLM calls them: `cutlass` (fp8 by tensor, token
    and block; int8), `triton` and `deepgemm` (fp8 in blocks)."""
    if op.weight_dtype not in ("", op.dtype) or op.dtype not in ("fp8", "int8"):
        raise Unsupported(f"no product of {op.dtype} with {op.weight_dtype or op.dtype} weights is called here")
    blocks = bool(op.block_k)
    if blocks and (op.block_n, op.block_k, op.group) != (BLOCK, BLOCK, BLOCK):
        raise Unsupported(f"blocks are called as {BLOCK}x{BLOCK} with groups of {BLOCK}, not others")
    if implementation == "torch":
        return _scaled_mm(op, draw)
    if implementation == "cutlass":
        return _cutlass_blocks(op, draw) if blocks else _cutlass(op, draw)
    if not blocks:
        raise Unsupported(f"{implementation} is called for blocks of weights only")
    return _triton(op, draw) if implementation == "triton" else _deepgemm(op, draw)


def operand(rows: int, cols: int, dtype: str, draw: Draw) -> torch.Tensor:
    """Random, of the magnitudes that a quantised tensor has."""
    if dtype == "int8":
        return draw.integers(-127, 128, (rows, cols), torch.int8)
    return draw.normal((rows, cols), dtype, scale=60.0)  # far from where fp8 ends


def _operand_scales(op: ScaledLinear, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales of the tokens (one for all of them, or one each) and of the weights (one for all, or one for each
    output)."""
    of_tokens = scales((1, 1) if op.per_tensor else (op.m, 1), torch.float32, *draw)
    return of_tokens, scales((op.n, 1) if op.block_n else (1, 1), torch.float32, *draw)


def _scaled_mm(op: ScaledLinear, draw: Draw) -> Closure:
    if op.dtype != "fp8" or op.block_k:
        raise Unsupported("torch._scaled_mm is called for fp8 with scales by tensor, token and output")
    x, weight = (operand(rows, op.k, op.dtype, draw) for rows in (op.m, op.n))
    of_tokens, of_weights = _operand_scales(op, draw)
    out, turned = torch_dtype("bf16"), weight.t()
    bias = draw.normal((op.n,), "bf16") if op.bias else None
    if op.per_tensor and not op.block_n:
        a, b = of_tokens.squeeze(), of_weights.squeeze()
    else:  # both by row: a scale of the whole matrix is repeated
        a, b = of_tokens.expand(op.m, 1).contiguous(), of_weights.view(1, -1).expand(1, op.n).contiguous()
    return lambda: torch._scaled_mm(x, turned, a, b, bias=bias, out_dtype=out)


def _cutlass(op: ScaledLinear, draw: Draw) -> Closure:
    ops = custom_ops("cutlass_scaled_mm", "cutlass_scaled_mm")
    if op.n % CUTLASS_STEP or op.k % CUTLASS_STEP:
        raise Unsupported(f"CUTLASS takes multiples of {CUTLASS_STEP}: the engine would pad or take Triton")
    x, weight = (operand(rows, op.k, op.dtype, draw) for rows in (op.m, op.n))
    of_tokens, of_weights = _operand_scales(op, draw)
    bias = draw.normal((op.n,), "bf16") if op.bias else None
    turned = weight.t()  # the engine keeps weights so: k x n, each column in one piece
    return lambda: ops.cutlass_scaled_mm(x, turned, of_tokens, of_weights, torch.bfloat16, bias)


def _block_operands(op: ScaledLinear, draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, weight, and the weight's scales."""
    if op.bias or op.k % BLOCK:
        raise Unsupported("products in blocks are called without bias, with whole blocks of inputs")
    x, weight = (operand(rows, op.k, op.dtype, draw) for rows in (op.m, op.n))
    return x, weight, scales((-(-op.n // BLOCK), op.k // BLOCK), torch.float32, *draw)


def _cutlass_blocks(op: ScaledLinear, draw: Draw) -> Closure:
    ops = custom_ops("cutlass_scaled_mm", "cutlass_scaled_mm")
    if op.n % BLOCK:
        raise Unsupported(f"CUTLASS in blocks takes outputs in multiples of {BLOCK}")
    x, weight, of_weights = _block_operands(op, draw)
    # a scale for each token and group, the tokens of one group side by side
    of_tokens = scales((op.k // BLOCK, op.m), torch.float32, *draw).t()
    turned, turned_scales = weight.t(), of_weights.t()
    return lambda: ops.cutlass_scaled_mm(x, turned, of_tokens, turned_scales, torch.bfloat16)


def _triton(op: ScaledLinear, draw: Draw) -> Closure:
    product = function(f"{QUANTISATION}.fp8_utils", "w8a8_triton_block_scaled_mm", "Triton")
    x, weight, of_weights = _block_operands(op, draw)
    of_tokens = scales((op.m, op.k // BLOCK), torch.float32, *draw)
    return lambda: product(x, weight, of_tokens, of_weights, [BLOCK, BLOCK], torch.bfloat16)


def _deepgemm(op: ScaledLinear, draw: Draw) -> Closure:
    deep = module("vllm.utils.deep_gemm", "DeepGEMM")
    if not function("vllm.utils.import_utils", "has_deep_gemm", "DeepGEMM")():
        raise Unsupported("DeepGEMM is not installed beside vLLM here")
    x, weight, of_weights = _block_operands(op, draw)
    of_tokens = scales((op.k // BLOCK, op.m), torch.float32, *draw).t()
    out = torch.empty((op.m, op.n), dtype=torch.bfloat16, device=draw.device)
    return lambda: deep.fp8_gemm_nt((x, of_tokens), (weight, of_weights), out, is_deep_gemm_e8m0_used=False)


@builds("packed_linear", gpu=("marlin", "machete", "torch"))
def packed_linear(op: PackedLinear, draw: Draw, implementation: str) -> Closure:
    """Products of a 16-bit input with packed weights: as vLLM calls them, `marlin`, and `machete` on Hopper, with
    random words in the kernel's own layout; `torch`, weights unpacked, then F.linear."""
    if op.bias:
        raise Unsupported("packed weights are measured without bias")
    if implementation == "torch":
        return _unpacked(op, draw)
    if implementation == "machete":
        return _machete(op, draw)
    return _marlin_fp8(op, draw) if op.weight_dtype == "fp8" else _marlin(op, draw)


def _unpacked(op: PackedLinear, draw: Draw) -> Closure:
    """Words of each row's inputs in order, a scale for each group of them."""
    bits, act = BITS[op.weight_dtype], torch_dtype(op.dtype)
    if op.weight_dtype not in ("int4", "int8") or op.zeros or op.k % (32 // bits):
        raise Unsupported("torch unpacks symmetric int4 and int8 weights, whole words of them")
    x = draw.normal((op.m, op.k), op.dtype)
    words = packed((op.n, op.k * bits // 32), *draw)
    of_groups = scales((op.n, op.k // (op.group or op.k), 1), act, *draw)
    shifts = torch.arange(0, 32, bits, device=draw.device, dtype=torch.int32)

    def call() -> object:
        values = ((words[..., None] >> shifts) & (2**bits - 1)).view(op.n, -1) - 2 ** (bits - 1)
        weight = values.to(act).view(op.n, of_groups.shape[1], -1) * of_groups
        return F.linear(x, weight.view(op.n, op.k))

    return call


def _marlin(op: PackedLinear, draw: Draw) -> Closure:
    custom_ops("Marlin", "marlin_gemm")
    marlin = module(f"{QUANTISATION}.marlin_utils", "Marlin")
    if op.group not in MARLIN_GROUPS or op.weight_dtype not in ("int4", "int8"):
        raise Unsupported(f"Marlin is called for int4 and int8 in groups of {', '.join(map(str, MARLIN_GROUPS[1:]))}")
    kind = weight_type(op.weight_dtype, op.zeros, "Marlin")
    x = draw.normal((op.m, op.k), op.dtype)
    weight = marlin_weight((), op.n, op.k, op.weight_dtype, *draw)
    groups = op.k // (op.group or op.k)
    of_groups = scales((groups, op.n), torch_dtype(op.dtype), *draw)
    empty = torch.empty(0, dtype=torch.int32, device=draw.device)
    zeros = packed((groups, op.n * BITS[op.weight_dtype] // 32), *draw) if op.zeros else empty
    workspace = marlin.marlin_make_workspace_new(draw.device)
    return lambda: marlin.apply_gptq_marlin_linear(
        x, weight, of_groups, zeros, empty, empty, workspace, kind, op.n, op.k, is_k_full=True
    )


def _marlin_fp8(op: PackedLinear, draw: Draw) -> Closure:
    custom_ops("Marlin", "marlin_gemm")
    marlin = module(f"{QUANTISATION}.marlin_utils", "Marlin")
    product = function(f"{QUANTISATION}.marlin_utils_fp8", "apply_fp8_marlin_linear", "Marlin")
    if op.group not in (0, 128) or op.zeros:
        raise Unsupported("Marlin takes fp8 weights with a scale for each output or each 128 inputs")
    x = draw.normal((op.m, op.k), op.dtype)
    weight = marlin_weight((), op.n, op.k, "fp8", *draw)
    of_groups = scales((op.k // (op.group or op.k), op.n), torch_dtype(op.dtype), *draw)
    workspace = marlin.marlin_make_workspace_new(draw.device)
    return lambda: product(x, weight, of_groups, workspace, op.n, op.k, None)


def _machete(op: PackedLinear, draw: Draw) -> Closure:
    ops = custom_ops("Machete", "machete_mm", "machete_prepack_B")
    if op.weight_dtype not in ("int4", "int8") or op.group not in MACHETE_GROUPS:
        raise Unsupported("Machete is called for int4 and int8 in groups of 64, 128 or a whole row")
    if op.k % MACHETE_K or op.n % MACHETE_N:
        raise Unsupported(f"Machete takes inputs in multiples of {MACHETE_K} and outputs in multiples of {MACHETE_N}")
    kind, act = weight_type(op.weight_dtype, op.zeros, "Machete"), torch_dtype(op.dtype)
    x = draw.normal((op.m, op.k), op.dtype)
    words = packed((op.k * BITS[op.weight_dtype] // 32, op.n), *draw)
    weight = ops.machete_prepack_B(words.t().contiguous().t(), a_type=act, b_type=kind, group_scales_type=act)
    groups = op.k // (op.group or op.k)
    of_groups = scales((groups, op.n), act, *draw)
    zeros = draw.normal((groups, op.n), op.dtype) if op.zeros else None
    return lambda: ops.machete_mm(
        a=x, b_q=weight, b_type=kind, b_group_zeros=zeros, b_group_scales=of_groups, b_group_size=op.group or -1
    )


# What rounds its result: the plain operator's function, which torch.compile takes
PLAIN: dict[str, Callable[..., Any]] = {
    "rms_norm_quant": rms_norm, "add_rms_norm_quant": add_rms_norm, "silu_mul_quant": gated
}  # fmt: skip


@lru_cache(maxsize=8)
def _then_rounded(kind: str, group: int) -> Callable[..., tuple[torch.Tensor, ...]]:
    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result, *others = plain if isinstance(plain := PLAIN[kind](*inputs), tuple) else (plain,)
        return (*rounded(result, group), *others)

    return run


@builds("silu_mul_quant", gpu=("compiled", "torch", "vllm"))
@builds("add_rms_norm_quant", gpu=("compiled", "torch", "vllm"))
@builds("rms_norm_quant", gpu=("compiled", "torch", "vllm"))
def with_rounding(op: WithRounding, draw: Draw, implementation: str) -> Closure:
    """A norm or a gated activation of a merged projection, and the rounding of its result: `compiled`, one kernel by
    torch.compile, as vLLM runs it; `vllm`, its own kernel, which it takes where scales cover groups."""
    if op.to != "fp8" or op.group not in (0, 128):
        raise Unsupported("roundings after a norm or activation are called to fp8, by row or by groups of 128")
    rows = max(2, op.rows) if implementation == "compiled" else op.rows
    gates = op.kind == "silu_mul_quant"
    shape = (rows, 2 * op.cols if gates else op.cols)
    x = [draw.normal(shape, op.dtype) for _ in range(2 if op.kind == "add_rms_norm_quant" else 1)]
    weight = [] if gates else [draw.normal((op.cols,), op.dtype)]
    if implementation == "vllm":
        return _vllm_gated(x[0], op.group) if gates else _vllm_norm(x[0], weight[0], op.group, *x[1:])
    both = _then_rounded(op.kind, op.group)
    return compiled(both, x, weight) if implementation == "compiled" else partial(both, *x, *weight)


def _vllm_gated(merged: torch.Tensor, group: int) -> Closure:
    if not group:
        raise Unsupported("vLLM's own kernel of activation and rounding is for groups")
    ops = custom_ops("silu_and_mul_per_block_quant", "silu_and_mul_per_block_quant")
    return lambda: ops.silu_and_mul_per_block_quant(merged, group, torch.float8_e4m3fn, is_scale_transposed=True)


def _vllm_norm(x: torch.Tensor, weight: torch.Tensor, group: int, residual: torch.Tensor | None = None) -> Closure:
    fp8 = torch.float8_e4m3fn
    if group:
        ops = custom_ops("rms_norm_per_block_quant", "rms_norm_per_block_quant")
        return lambda: ops.rms_norm_per_block_quant(
            x, weight, EPSILON, fp8, [1, group], residual=residual, is_scale_transposed=True
        )
    ops = custom_ops("rms_norm_dynamic_per_token_quant", "rms_norm_dynamic_per_token_quant")
    return lambda: ops.rms_norm_dynamic_per_token_quant(x, weight, EPSILON, fp8, residual=residual)
