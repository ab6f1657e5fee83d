"""Expert layers over tokens routed uniformly at random: as torch, as HF and as vLLM run them."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F

from chip.lab.measure.build import Closure, Draw, Unsupported, builds, torch_dtype
from chip.lab.measure.build.routers import FUSED_MOE
from chip.lab.measure.vllm_ops import (
    QUANTISATION,
    custom_ops,
    function,
    marlin_weight,
    module,
    packed,
    scales,
    weight_type,
)
from chip.ops.experts import MoeExperts, MoeExpertsComposed, PackedExperts, ScaledExperts

EXPERTS = f"{FUSED_MOE}.experts"
MXFP4_STEP = 64  # to a multiple of which vLLM pads the inner width of mxfp4 experts


@builds("moe_experts", gpu=("torch", "vllm"))
def moe_experts(op: MoeExperts, draw: Draw, implementation: str) -> Closure:
    """Expert layers over tokens routed uniformly at random: `torch`, the grouped products (F.grouped_mm) of tokens
    already sorted by expert; `vllm`, all that vLLM's Triton experts launch for routed tokens. Those are what it takes
    for bf16 on Hopper; tile sizes are those tuned for the device and shape where vLLM ships such, else its defaults."""
    if implementation == "vllm":
        return _fused_experts(op, draw)
    x = draw.normal((op.tokens * op.top_k, op.hidden), op.dtype)
    up, down = (w.transpose(1, 2) for w in weights(op, draw))
    ends = _ends(op, draw)
    return lambda: grouped(x, up, down, ends, op.gated)


def grouped(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, ends: torch.Tensor, gated: bool) -> torch.Tensor:
    """The result for rows sorted by expert; `ends`: after which row each expert's end."""
    return F.grouped_mm(_activated(F.grouped_mm(x, up, offs=ends), gated), down, offs=ends)


def _activated(inner: torch.Tensor, gated: bool) -> torch.Tensor:
    if not gated:
        return F.silu(inner)
    gate, value = inner.chunk(2, -1)
    return F.silu(gate) * value


def _ends(op: MoeExperts, draw: Draw) -> torch.Tensor:
    return torch.bincount(routing(op, draw).flatten(), minlength=op.experts).cumsum(0).to(torch.int32)


def _choice(op: MoeExperts, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """The share of each expert of each token, and the expert, as vLLM takes them."""
    chosen = routing(op, draw).to(torch.int32)
    return draw.uniform(chosen.shape), chosen


def _fused_experts(op: MoeExperts, draw: Draw) -> Closure:
    fused_experts = function(FUSED_MOE, "fused_experts", "fused experts")
    if not op.gated:
        raise Unsupported("only gated experts are called as vLLM calls them")
    x = draw.normal((op.tokens, op.hidden), op.dtype)
    up, down = weights(op, draw)
    shares, chosen = _choice(op, draw)
    return lambda: fused_experts(x, up, down, shares, chosen)


def weights(op: MoeExperts, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights of up (gate first) and down, an expert after the other, as both engines keep them."""
    if op.weight_dtype not in ("", op.dtype):
        raise Unsupported(f"torch has no grouped product of {op.dtype} with {op.weight_dtype} weights")
    if not hasattr(F, "grouped_mm"):
        raise Unsupported("this torch has no F.grouped_mm")
    width = op.intermediate * (2 if op.gated else 1)
    up = draw.normal((op.experts, width, op.hidden), op.dtype, op.hidden**-0.5)
    return up, draw.normal((op.experts, op.hidden, op.intermediate), op.dtype, op.intermediate**-0.5)


def routing(op: MoeExperts, draw: Draw) -> torch.Tensor:
    """top_k distinct experts for every token."""
    return draw.uniform((op.tokens, op.experts)).topk(op.top_k, -1).indices


@builds("moe_experts_composed")
def moe_experts_composed(op: MoeExpertsComposed, draw: Draw, implementation: str) -> Closure:
    """Experts as transformers' grouped_mm_experts_forward runs them: sort, gather, grouped products, weigh, undo,
    sum."""
    x = draw.normal((op.tokens, op.hidden), op.dtype)
    up, down = (w.transpose(1, 2) for w in weights(op, draw))
    chosen = routing(op, draw)
    shares = draw.normal(tuple(chosen.shape), op.dtype).abs_()
    counted = torch.float32 if draw.device.type == "cpu" else torch.int32  # what histc takes

    def call() -> object:
        experts, order = torch.sort(chosen.reshape(-1))
        rows = x[order // op.top_k]
        share = shares.reshape(-1)[order]
        counts = torch.histc(experts.to(counted), bins=op.experts, min=0, max=op.experts - 1)
        ends = counts.cumsum(0, dtype=torch.int32)
        elsewhere = (experts >= op.experts).unsqueeze(-1)
        experts.clamp_(max=op.experts - 1)
        rows.masked_fill_(elsewhere, 0.0)
        inner = F.grouped_mm(rows, up, offs=ends).masked_fill(elsewhere, 0.0)
        out = F.grouped_mm(_activated(inner, op.gated), down, offs=ends).masked_fill(elsewhere, 0.0)
        out = out * share.unsqueeze(-1)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=draw.device)
        return out[place].view(op.tokens, op.top_k, op.hidden).sum(1)

    return call


@builds("scaled_experts", gpu=("vllm", "torch"))
def scaled_experts(op: ScaledExperts, draw: Draw, implementation: str) -> Closure:
    """fp8 expert layers over tokens routed uniformly at random: `vllm`, all that its Triton experts launch, which is
    what it takes on Hopper, for blocks and for scales by tensor; `torch`, weights widened, then grouped products."""
    if op.dtype != "fp8" or op.weight_dtype not in ("", "fp8") or not op.gated:
        raise Unsupported("only gated experts with fp8 weights and inputs are called as vLLM calls them")
    if implementation == "torch":
        return _widened(op, draw)
    fused, configs = (module(f"{FUSED_MOE}{part}", "fused experts") for part in ("", ".config"))
    x = draw.normal((op.tokens, op.hidden), "bf16")
    shapes = ((2 * op.intermediate, op.hidden), (op.hidden, op.intermediate))
    up, down = (draw.normal((op.experts, *shape), "fp8") for shape in shapes)
    up_scales, down_scales = (_scales_of_weights(op, n, k, draw) for n, k in shapes)
    quantised = configs.fp8_w8a8_moe_quant_config(
        w1_scale=up_scales, w2_scale=down_scales, per_act_token_quant=not op.per_tensor and not op.block_k,
        per_out_ch_quant=op.block_n == 1, block_shape=[op.block_n, op.block_k] if op.block_k else None,
    )  # fmt: skip
    shares, chosen = _choice(op, draw)
    return lambda: fused.fused_experts(x, up, down, shares, chosen, quant_config=quantised)


def _scales_of_weights(op: ScaledExperts, n: int, k: int, draw: Draw) -> torch.Tensor:
    if op.block_k:
        shape: tuple[int, ...] = (op.experts, -(-n // op.block_n), -(-k // op.block_k))
    else:
        shape = (op.experts, n, 1) if op.block_n else (op.experts,)
    return scales(shape, torch.float32, *draw)


def _widened(op: MoeExperts, draw: Draw) -> Closure:
    """fp8 weights with a scale for each expert, widened to 16 bits before the grouped products."""
    shapes = ((2 * op.intermediate, op.hidden), (op.hidden, op.intermediate))
    narrow = [draw.normal((op.experts, *shape), "fp8") for shape in shapes]
    by_expert = scales((op.experts, 1, 1), torch.bfloat16, *draw)
    x = draw.normal((op.tokens * op.top_k, op.hidden), "bf16")
    ends = _ends(op, draw)

    def call() -> object:
        up, down = ((w.to(torch.bfloat16) * by_expert).transpose(1, 2) for w in narrow)
        return grouped(x, up, down, ends, gated=True)

    return call


@builds("packed_experts", gpu=("marlin", "triton", "torch"))
def packed_experts(op: PackedExperts, draw: Draw, implementation: str) -> Closure:
    """Expert layers with packed weights over tokens routed uniformly at random: `marlin`, all that its Marlin experts
    launch, int4 in groups and mxfp4; `triton`, mxfp4 on Hopper, the choice of experts included. `torch`, weights
    unpacked, then grouped products."""
    if not op.gated or op.zeros or op.weight_dtype not in ("int4", "fp4"):
        raise Unsupported("only gated experts with symmetric int4 or fp4 weights are called as vLLM calls them")
    if implementation == "torch":
        return _unpacked(op, draw)
    if implementation == "triton":
        return _by_triton(op, draw)
    custom_ops("Marlin experts")
    marlin = module(f"{EXPERTS}.marlin_moe", "Marlin experts")
    kind = weight_type(op.weight_dtype, False, "Marlin")
    x = draw.normal((op.tokens, op.hidden), op.dtype)
    shapes = ((2 * op.intermediate, op.hidden), (op.hidden, op.intermediate))
    up, down = (marlin_weight((op.experts,), n, k, op.weight_dtype, *draw) for n, k in shapes)
    up_scales, down_scales = (_scales_of_groups(op, n, k, draw) for n, k in shapes)
    workspace = module(f"{QUANTISATION}.marlin_utils", "Marlin").marlin_make_workspace_new(draw.device, 4)
    shares, chosen = _choice(op, draw)
    return lambda: marlin.fused_marlin_moe(
        x, up, down, None, None, up_scales, down_scales, shares, chosen, quant_type_id=kind.id, workspace=workspace
    )


def _by_triton(op: PackedExperts, draw: Draw) -> Closure:
    if op.weight_dtype != "fp4":
        raise Unsupported("Triton experts are of mxfp4")
    kernels = module(f"{EXPERTS}.gpt_oss_triton_kernels_moe", "Triton")
    layouts = module(f"{QUANTISATION}.mxfp4_utils", "Triton")
    ogs = module("triton_kernels.matmul_ogs", "Triton experts")
    inner = -(-op.intermediate // MXFP4_STEP) * MXFP4_STEP

    def matrix(n: int, k: int) -> tuple[object, object, torch.Tensor]:
        values = draw.integers(0, 256, (op.experts, n, k // 2), torch.uint8)
        exponents = draw.integers(118, 124, (op.experts, n, k // 32))
        stored, flex, by_group = layouts._swizzle_mxfp4(values, exponents.to(torch.uint8))
        precision = ogs.PrecisionConfig(weight_scale=by_group, flex_ctx=ogs.FlexCtx(rhs_data=flex))
        return stored, precision, draw.uniform((op.experts, n))

    up, up_precision, up_bias = matrix(2 * inner, op.hidden)
    down, down_precision, down_bias = matrix(op.hidden, inner)
    config = SimpleNamespace(w1_bias=up_bias, w2_bias=down_bias, w1_precision=up_precision, w2_precision=down_precision)
    x = draw.normal((op.tokens, op.hidden), op.dtype)
    logits = draw.normal((op.tokens, op.experts), op.dtype)
    return lambda: kernels.triton_kernel_moe_forward(x, up, down, logits, op.top_k, True, quant_config=config)


def _scales_of_groups(op: PackedExperts, n: int, k: int, draw: Draw) -> torch.Tensor:
    shape = (op.experts, k // (op.group or k), n)
    if op.weight_dtype == "int4":
        return scales(shape, torch_dtype(op.dtype), *draw)
    return draw.integers(118, 124, shape).to(torch.uint8).view(torch.float8_e8m0fnu)


def _unpacked(op: PackedExperts, draw: Draw) -> Closure:
    if op.weight_dtype != "int4" or op.hidden % 8 or op.intermediate % 8:
        raise Unsupported("torch unpacks int4 experts, whole words of them")
    act = torch_dtype(op.dtype)
    shapes = ((2 * op.intermediate, op.hidden), (op.hidden, op.intermediate))
    words = [packed((op.experts, n, k // 8), *draw) for n, k in shapes]
    of_groups = [scales((op.experts, n, k // (op.group or k), 1), act, *draw) for n, k in shapes]
    shifts = torch.arange(0, 32, 4, device=draw.device, dtype=torch.int32)
    x = draw.normal((op.tokens * op.top_k, op.hidden), op.dtype)
    ends = _ends(op, draw)

    def widen(one: torch.Tensor, by_group: torch.Tensor) -> torch.Tensor:
        values = ((one[..., None] >> shifts) & 15).flatten(-2) - 8
        return (values.to(act).view(*by_group.shape[:3], -1) * by_group).flatten(-2).transpose(1, 2)

    def call() -> object:
        up, down = map(widen, words, of_groups)
        return grouped(x, up, down, ends, gated=True)

    return call
