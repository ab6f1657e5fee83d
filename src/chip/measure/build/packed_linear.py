"""Products of a 16-bit input with packed weights: as vLLM calls them (from an environment that has vLLM), `marlin`, and
`machete` on Hopper, with random words in the kernel's own layout; `torch`, weights unpacked, then F.linear."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, Unsupported, normal, torch_dtype
from chip.measure.vllm_ops import (
    BITS,
    QUANTISATION,
    custom_ops,
    marlin_weight,
    module,
    packed,
    scales,
    weight_type,
)
from chip.ops.packed_linear import PackedLinear

MARLIN_GROUPS, MACHETE_GROUPS = (0, 32, 64, 128), (0, 64, 128)
MACHETE_K, MACHETE_N = 64, 128


def implementations(op: PackedLinear, device_type: str) -> tuple[str, ...]:
    return ("torch",) if device_type == "cpu" else ("marlin", "machete", "torch")


def build(
    op: PackedLinear, device: torch.device, generator: torch.Generator, implementation: str = "marlin"
) -> Closure:
    if op.bias:
        raise Unsupported("packed weights are measured without bias")
    if implementation == "torch":
        return _torch(op, device, generator)
    if implementation == "machete":
        return _machete(op, device, generator)
    return _marlin_fp8(op, device, generator) if op.weight_dtype == "fp8" else _marlin(op, device, generator)


def _torch(op: PackedLinear, device: torch.device, generator: torch.Generator) -> Closure:
    """Words of each row's inputs in order, a scale for each group of them."""
    bits, act = BITS[op.weight_dtype], torch_dtype(op.dtype)
    if op.weight_dtype not in ("int4", "int8") or op.zeros or op.k % (32 // bits):
        raise Unsupported("torch unpacks symmetric int4 and int8 weights, whole words of them")
    x = normal((op.m, op.k), op.dtype, device, generator)
    words = packed((op.n, op.k * bits // 32), device, generator)
    of_groups = scales((op.n, op.k // (op.group or op.k), 1), act, device, generator)
    shifts = torch.arange(0, 32, bits, device=device, dtype=torch.int32)

    def call() -> object:
        values = ((words[..., None] >> shifts) & (2**bits - 1)).view(op.n, -1) - 2 ** (bits - 1)
        weight = values.to(act).view(op.n, of_groups.shape[1], -1) * of_groups
        return F.linear(x, weight.view(op.n, op.k))

    return call


def _marlin(op: PackedLinear, device: torch.device, generator: torch.Generator) -> Closure:
    custom_ops("Marlin", "marlin_gemm")
    marlin = module(f"{QUANTISATION}.marlin_utils", "Marlin")
    if op.group not in MARLIN_GROUPS or op.weight_dtype not in ("int4", "int8"):
        raise Unsupported(f"Marlin is called for int4 and int8 in groups of {', '.join(map(str, MARLIN_GROUPS[1:]))}")
    kind = weight_type(op.weight_dtype, op.zeros, "Marlin")
    x = normal((op.m, op.k), op.dtype, device, generator)
    weight = marlin_weight((), op.n, op.k, op.weight_dtype, device, generator)
    groups = op.k // (op.group or op.k)
    of_groups = scales((groups, op.n), torch_dtype(op.dtype), device, generator)
    empty = torch.empty(0, dtype=torch.int32, device=device)
    zeros = packed((groups, op.n * BITS[op.weight_dtype] // 32), device, generator) if op.zeros else empty
    workspace = marlin.marlin_make_workspace_new(device)
    return lambda: marlin.apply_gptq_marlin_linear(
        x, weight, of_groups, zeros, empty, empty, workspace, kind, op.n, op.k, is_k_full=True
    )


def _marlin_fp8(op: PackedLinear, device: torch.device, generator: torch.Generator) -> Closure:
    custom_ops("Marlin", "marlin_gemm")
    marlin = module(f"{QUANTISATION}.marlin_utils", "Marlin")
    product = module(f"{QUANTISATION}.marlin_utils_fp8", "Marlin").apply_fp8_marlin_linear
    if op.group not in (0, 128) or op.zeros:
        raise Unsupported("Marlin takes fp8 weights with a scale for each output or each 128 inputs")
    x = normal((op.m, op.k), op.dtype, device, generator)
    weight = marlin_weight((), op.n, op.k, "fp8", device, generator)
    of_groups = scales((op.k // (op.group or op.k), op.n), torch_dtype(op.dtype), device, generator)
    workspace = marlin.marlin_make_workspace_new(device)
    return lambda: product(x, weight, of_groups, workspace, op.n, op.k, None)


def _machete(op: PackedLinear, device: torch.device, generator: torch.Generator) -> Closure:
    ops = custom_ops("Machete", "machete_mm", "machete_prepack_B")
    if op.weight_dtype not in ("int4", "int8") or op.group not in MACHETE_GROUPS:
        raise Unsupported("Machete is called for int4 and int8 in groups of 64, 128 or a whole row")
    if op.k % MACHETE_K or op.n % MACHETE_N:
        raise Unsupported(f"Machete takes inputs in multiples of {MACHETE_K} and outputs in multiples of {MACHETE_N}")
    kind, act = weight_type(op.weight_dtype, op.zeros, "Machete"), torch_dtype(op.dtype)
    x = normal((op.m, op.k), op.dtype, device, generator)
    words = packed((op.k * BITS[op.weight_dtype] // 32, op.n), device, generator)
    weight = ops.machete_prepack_B(words.t().contiguous().t(), a_type=act, b_type=kind, group_scales_type=act)
    groups = op.k // (op.group or op.k)
    of_groups = scales((groups, op.n), act, device, generator)
    zeros = normal((groups, op.n), op.dtype, device, generator) if op.zeros else None
    return lambda: ops.machete_mm(
        a=x, b_q=weight, b_type=kind, b_group_zeros=zeros, b_group_scales=of_groups, b_group_size=op.group or -1
    )
