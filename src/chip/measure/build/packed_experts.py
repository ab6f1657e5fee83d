"""Expert layers with packed weights over tokens routed uniformly at random, called as vLLM does (from an environment
that has vLLM): `marlin`, all that its Marlin experts launch, int4 in groups and mxfp4; `triton`, mxfp4 on Hopper, the
choice of experts included. `torch`, weights unpacked, then grouped products."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from chip.measure.build import Closure, Unsupported, normal, torch_dtype
from chip.measure.build.moe_experts import grouped, routing
from chip.measure.vllm_ops import QUANTISATION, custom_ops, marlin_weight, module, packed, scales, weight_type
from chip.ops.packed_experts import PackedExperts

EXPERTS = "vllm.model_executor.layers.fused_moe.experts"
MXFP4_STEP = 64  # to a multiple of which vLLM pads the inner width of mxfp4 experts


def implementations(op: PackedExperts, device_type: str) -> tuple[str, ...]:
    return ("torch",) if device_type == "cpu" else ("marlin", "triton", "torch")


def build(
    op: PackedExperts, device: torch.device, generator: torch.Generator, implementation: str = "marlin"
) -> Closure:
    if not op.gated or op.zeros or op.weight_dtype not in ("int4", "fp4"):
        raise Unsupported("only gated experts with symmetric int4 or fp4 weights are called as vLLM calls them")
    if implementation == "torch":
        return _torch(op, device, generator)
    if implementation == "triton":
        return _triton(op, device, generator)
    custom_ops("Marlin experts")
    marlin, workspaces = (
        module(f"{EXPERTS}.marlin_moe", "Marlin experts"),
        module(f"{QUANTISATION}.marlin_utils", "Marlin"),
    )
    kind = weight_type(op.weight_dtype, False, "Marlin")
    x = normal((op.tokens, op.hidden), op.dtype, device, generator)
    shapes = ((2 * op.intermediate, op.hidden), (op.hidden, op.intermediate))
    up, down = (marlin_weight((op.experts,), n, k, op.weight_dtype, device, generator) for n, k in shapes)
    up_scales, down_scales = (_scales(op, n, k, device, generator) for n, k in shapes)
    workspace = workspaces.marlin_make_workspace_new(device, 4)
    chosen = routing(op, device, generator).to(torch.int32)
    shares = torch.rand(chosen.shape, device=device, generator=generator)
    return lambda: marlin.fused_marlin_moe(
        x, up, down, None, None, up_scales, down_scales, shares, chosen, quant_type_id=kind.id, workspace=workspace
    )


def _triton(op: PackedExperts, device: torch.device, generator: torch.Generator) -> Closure:
    if op.weight_dtype != "fp4":
        raise Unsupported("Triton experts are of mxfp4")
    kernels, layouts = (
        module(f"{EXPERTS}.gpt_oss_triton_kernels_moe", "Triton"),
        module(f"{QUANTISATION}.mxfp4_utils", ""),
    )
    ogs = module("triton_kernels.matmul_ogs", "Triton experts")
    inner = -(-op.intermediate // MXFP4_STEP) * MXFP4_STEP

    def matrix(n: int, k: int) -> tuple[object, object, torch.Tensor]:
        values = torch.randint(0, 256, (op.experts, n, k // 2), device=device, generator=generator, dtype=torch.uint8)
        exponents = torch.randint(118, 124, (op.experts, n, k // 32), device=device, generator=generator)
        stored, flex, by_group = layouts._swizzle_mxfp4(values, exponents.to(torch.uint8))
        precision = ogs.PrecisionConfig(weight_scale=by_group, flex_ctx=ogs.FlexCtx(rhs_data=flex))
        return stored, precision, torch.rand((op.experts, n), device=device, generator=generator)

    (up, up_precision, up_bias), (down, down_precision, down_bias) = (
        matrix(2 * inner, op.hidden),
        matrix(op.hidden, inner),
    )
    config = SimpleNamespace(
        w1_bias=up_bias, w2_bias=down_bias, w1_precision=up_precision, w2_precision=down_precision
    )  # fmt: skip
    x = normal((op.tokens, op.hidden), op.dtype, device, generator)
    logits = normal((op.tokens, op.experts), op.dtype, device, generator)
    return lambda: kernels.triton_kernel_moe_forward(x, up, down, logits, op.top_k, True, quant_config=config)


def _scales(op: PackedExperts, n: int, k: int, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    shape = (op.experts, k // (op.group or k), n)
    if op.weight_dtype == "int4":
        return scales(shape, torch_dtype(op.dtype), device, generator)
    exponents = torch.randint(118, 124, shape, device=device, generator=generator, dtype=torch.int64)
    return exponents.to(torch.uint8).view(torch.float8_e8m0fnu)


def _torch(op: PackedExperts, device: torch.device, generator: torch.Generator) -> Closure:
    if op.weight_dtype != "int4" or op.hidden % 8 or op.intermediate % 8:
        raise Unsupported("torch unpacks int4 experts, whole words of them")
    act = torch_dtype(op.dtype)
    shapes = ((2 * op.intermediate, op.hidden), (op.hidden, op.intermediate))
    words = [packed((op.experts, n, k // 8), device, generator) for n, k in shapes]
    of_groups = [scales((op.experts, n, k // (op.group or k), 1), act, device, generator) for n, k in shapes]
    shifts = torch.arange(0, 32, 4, device=device, dtype=torch.int32)
    x = normal((op.tokens * op.top_k, op.hidden), op.dtype, device, generator)
    ends = torch.bincount(routing(op, device, generator).flatten(), minlength=op.experts).cumsum(0).to(torch.int32)

    def widen(one: torch.Tensor, by_group: torch.Tensor) -> torch.Tensor:
        values = ((one[..., None] >> shifts) & 15).flatten(-2) - 8
        return (values.to(act).view(*by_group.shape[:3], -1) * by_group).flatten(-2).transpose(1, 2)

    def call() -> object:
        up, down = map(widen, words, of_groups)
        return grouped(x, up, down, ends, gated=True)

    return call
