"""Operators by our own kernels (implementation `chip`), called as the native engine calls them.

Where a device has it, every kernel lets the next one start early (`overlap`), so a chain of products takes what it
takes inside a step: ramps of neighbours overlap. What stands between products in a step is timed between products.
Kernels are imported on use: they build their inputs with `chip.lab.measure.build`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from chip.engines.native import FEW_ROWS
from chip.lab.measure.build import Closure, Unsupported, normal
from chip.ops.attention import Attention
from chip.ops.elementwise import Elementwise
from chip.ops.linear import Linear
from chip.ops.moves import RopeStore
from chip.types import Op

NAME = "chip"
BESIDE, BESIDE_SETS = 4096, 8  # columns and rows of the weights that others are timed between, and how many of them
PAGE_TOKENS = 64
POSITIONS = 8192  # of the rotary table


def overlaps(device: torch.device) -> bool:
    from chip.lab.kernels.triton import language

    return language.can_overlap(device)


def linear(op: Linear, device: torch.device, generator: torch.Generator) -> Closure:
    from chip.lab.kernels import build, catalog, hgemm, skinny

    if op.bias:
        raise Unsupported("our products are measured without bias")
    few = op.m <= FEW_ROWS
    rungs = skinny.RUNGS if few else catalog.steps("hgemm")[:2:-1]
    capability = ".".join(map(str, torch.cuda.get_device_capability(device))) if device.type == "cuda" else None
    reasons = {rung: build.unusable(rung, device.type, capability) for rung in rungs}
    rung = next((r for r, why in reasons.items() if not why), None)
    if rung is None:
        raise Unsupported(f"our products: {next(iter(reasons.values()))}")
    x = normal((op.m, op.k), op.dtype, device, generator)
    weight = normal((op.n, op.k), op.dtype, device, generator)
    return partial((skinny if few else hgemm).run, rung, x, weight, overlap=overlaps(device))


def products_beside(op: Op, device: torch.device, generator: torch.Generator) -> list[Closure]:
    """Products of as many tokens, of other weights each: what an operator stands between in a step."""
    tokens = op.batch * op.q_len if isinstance(op, Attention) else int(getattr(op, "rows", 1))
    product = Linear(tokens, BESIDE, BESIDE, getattr(op, "dtype", "bf16"))
    return [linear(product, device, generator) for _ in range(BESIDE_SETS)]


def rms_norm(op: Elementwise, device: torch.device, generator: torch.Generator) -> Closure:
    from chip.lab.kernels.triton import rms_norm as kernel

    x, weight = kernel.inputs(op, device, generator)
    return partial(kernel.run, x, weight, overlap=overlaps(device))


def add_rms_norm(op: Elementwise, device: torch.device, generator: torch.Generator) -> Closure:
    from chip.lab.kernels.triton import add_rms_norm as kernel

    x, residual, weight = kernel.inputs(op, device, generator)
    return partial(kernel.run, x, residual, weight, overlap=overlaps(device))


def silu_mul(op: Elementwise, device: torch.device, generator: torch.Generator) -> Closure:
    """The activation of the halves that a merged product left."""
    from chip.lab.kernels.triton import silu_mul as kernel

    both = normal((op.rows, 2 * op.cols), op.dtype, device, generator)
    return partial(kernel.run, both[:, : op.cols], both[:, op.cols :], overlap=overlaps(device))


def attention(op: Attention, device: torch.device, generator: torch.Generator) -> Closure:
    """Over pages: single tokens by one kernel, prompts and chunks by another."""
    from chip.lab.kernels.triton import paged_decode_attention, prefill_attention

    if not op.causal or op.window or op.v_head_dim not in (0, op.head_dim):
        raise Unsupported("our attention is causal, without a window, and keys are as wide as values")
    kernel: Any = paged_decode_attention if op.q_len == 1 else prefill_attention
    return partial(kernel.run, *kernel.inputs(op, device, generator), overlap=overlaps(device))


def rope_store(op: RopeStore, device: torch.device, generator: torch.Generator, ours: bool) -> Closure:
    """`ours`: by our kernel, not by PyTorch's."""
    from chip.lab.kernels.triton import rope_store as kernel

    qkv = normal((op.rows, op.cols), op.dtype, device, generator)
    angles = torch.rand((POSITIONS, op.head_dim // 2), device=device, generator=generator) * 6
    cos, sin = angles.cos(), angles.sin()
    positions = torch.randint(0, POSITIONS, (op.rows,), device=device, generator=generator, dtype=torch.int32)
    pages = -(-op.rows // PAGE_TOKENS)
    slots = torch.randperm(pages * PAGE_TOKENS, device=device, generator=generator)[: op.rows].int()
    shape = (pages, op.kv_heads, PAGE_TOKENS, op.head_dim)
    keys = torch.empty(shape, dtype=qkv.dtype, device=device)
    call = partial(kernel.run if ours else kernel.native, qkv, cos, sin, positions, slots, keys)
    if not ours:
        return call
    queries = torch.empty((op.rows, op.heads, op.head_dim), dtype=qkv.dtype, device=device)
    out = (queries, keys, torch.empty_like(keys))
    return partial(call, out=out, overlap=overlaps(device))
