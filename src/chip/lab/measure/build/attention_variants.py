"""Attention over caches that are stored otherwise, that grow or have a fixed size, and under a window."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch.nn.attention import sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from chip.lab.measure.build import Closure, Draw, Unsupported, builds, torch_dtype
from chip.lab.measure.build.attention import BACKENDS, attention, backend, paged, repeat, seen
from chip.ops.attention import Attention
from chip.ops.attention_variants import Fp8Attention, GrowingAttention, LocalAttention
from chip.ops.masked_attention import MaskedAttention
from chip.types import Op


@builds("fp8_cache_attention")
def fp8_cache_attention(op: Attention, draw: Draw, implementation: str) -> Closure:
    """Attention over an fp8 cache: `torch`, keys and values widened, then F.scaled_dot_product_attention. Engines widen
    inside one kernel (FlashInfer, Triton), which is not called here."""
    if op.window or op.v_head_dim not in (0, op.head_dim) or not op.causal:
        raise Unsupported("attention over an fp8 cache is run without a window, with values as wide as keys")
    wide = torch_dtype(op.dtype)
    q = draw.normal((op.batch, op.heads, op.q_len, op.head_dim), op.dtype)
    shape = (op.batch, op.kv_heads, op.kv_len, op.head_dim)
    k, v = (draw.normal(shape, "fp8") for _ in range(2))
    mask = causal_lower_right(op.q_len, op.kv_len) if op.q_len > 1 else None
    return lambda: F.scaled_dot_product_attention(q, k.to(wide), v.to(wide), attn_mask=mask, enable_gqa=True)


@builds("fp8_attention", gpu=("fa3", "torch"))
def fp8_attention(op: Fp8Attention, draw: Draw, implementation: str) -> Closure:
    """Attention over an fp8 cache with fp8 queries: `fa3`, FlashAttention-3 over pages; `torch`, keys and values
    widened first, as `fp8_cache_attention`."""
    if implementation == "fa3":
        return paged(op, draw, "fp8")
    return fp8_cache_attention(op, draw, implementation)


@builds("local_attention", gpu=("fa3", "torch"))
def local_attention(op: LocalAttention, draw: Draw, implementation: str) -> Closure:
    """Attention under a sliding window: `fa3`, FlashAttention-3 over pages, called as vLLM calls it in a graph for
    contexts longer than this one; `torch`, as `attention`."""
    if implementation == "fa3":
        return paged(op, draw, window=op.window or op.kv_len)
    return attention(op, draw, implementation)


@builds(
    "growing_attention",
    gpu=("flash", "cudnn", "efficient", "math", "torch"),
    cpu=("torch", "flash", "math"),
    around=backend,
)
def growing_attention(op: GrowingAttention, draw: Draw, implementation: str) -> Closure:
    """What HF's sdpa attention calls with a dynamic cache: keys and values joined with the new ones, then
    F.scaled_dot_product_attention without a mask, with the flash backend unless the implementation names another."""
    if op.window or op.q_len > 1:
        raise Unsupported("only single tokens without a window take this way; others run under a mask")
    value_dim = op.v_head_dim or op.head_dim
    q = draw.normal((op.batch, op.heads, 1, op.head_dim), op.dtype)
    old, new = (op.kv_len - 1, 1) if op.kv_len > 1 else (1, 1)
    k, k_new = (draw.normal((op.batch, op.kv_heads, n, op.head_dim), op.dtype) for n in (old, new))
    v, v_new = (draw.normal((op.batch, op.kv_heads, n, value_dim), op.dtype) for n in (old, new))
    gqa = op.heads > op.kv_heads

    def call() -> object:
        keys, values = torch.cat((k, k_new), dim=-2), torch.cat((v, v_new), dim=-2)
        return F.scaled_dot_product_attention(q, keys, values, enable_gqa=gqa)

    return call


def _all_backends(op: Op, implementation: str) -> AbstractContextManager[object]:
    """All backends to choose from: importing vLLM switches cuDNN's off, and what takes its place can take ten times as
    long."""
    chosen = [BACKENDS[implementation]] if implementation in BACKENDS else [*BACKENDS.values()]
    backends: AbstractContextManager[object] = sdpa_kernel(chosen)
    return backends


@builds("masked_attention", gpu=("torch", "cudnn", "efficient", "math"), cpu=("torch", "math"), around=_all_backends)
def masked_attention(op: MaskedAttention, draw: Draw, implementation: str) -> Closure:
    """What HF's sdpa attention calls with a static cache: repeat_kv, then F.scaled_dot_product_attention under a mask.

    The backend is torch's own choice (cuDNN on Hopper), unless the implementation names one.
    """
    value_dim = op.v_head_dim or op.head_dim
    # queries as a projection and a rotation leave them: tokens before heads in memory
    q = draw.normal((op.batch, op.q_len, op.heads, op.head_dim), op.dtype).transpose(1, 2)
    k = draw.normal((op.batch, op.kv_heads, op.kv_len, op.head_dim), op.dtype)
    v = draw.normal((op.batch, op.kv_heads, op.kv_len, value_dim), op.dtype)
    mask = seen(op, op.kv_len, draw.device).expand(op.batch, 1, op.q_len, op.kv_len).contiguous()
    groups = op.heads // op.kv_heads
    if groups == 1:
        return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return lambda: F.scaled_dot_product_attention(q, repeat(k, groups), repeat(v, groups), attn_mask=mask)
