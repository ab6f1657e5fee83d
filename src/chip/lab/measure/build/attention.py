"""F.scaled_dot_product_attention with the backend named by the implementation (`torch` leaves the choice to torch), or
`fa3`: FlashAttention-3 over a paged cache, called as vLLM calls it (from an environment that has vLLM).

A causal step whose queries are the last of a longer context takes torch's lower-right causal bias, which the flash
backend runs without a mask. A sliding window needs a mask; a decode step under a window reads the window only.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from chip.engines.vllm.options import BLOCK_TOKENS
from chip.lab.measure import own_ops
from chip.lab.measure.build import Closure, Draw, Unsupported, builds, torch_dtype
from chip.lab.measure.vllm_ops import module
from chip.ops.attention import AnyAttention, Attention
from chip.ops.attention_tiles import GRAPH_TOKENS, MOST_SPLITS
from chip.ops.composed import Composed
from chip.types import Op

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
FLASH_HEAD_DIM = 256
GRAPH_CONTEXT = 4096  # keys: the longest context of a captured CUDA graph


def _by_size(op: Attention) -> tuple[str, ...]:
    if _needs_mask(op) or op.v_head_dim not in (0, op.head_dim) or op.head_dim > FLASH_HEAD_DIM or op.dtype == "fp32":
        return ("efficient", "cudnn", "math", "torch", "flash", "fa3", "chip")
    return ("flash", "cudnn", "efficient", "math", "torch", "fa3", "chip")


def backend(op: Op, implementation: str) -> AbstractContextManager[object]:
    return sdpa_kernel(BACKENDS[implementation]) if implementation in BACKENDS else nullcontext()


@builds("attention", gpu=_by_size, cpu=("torch", "flash", "math", "chip"), around=backend)
def attention(op: Attention, draw: Draw, implementation: str) -> Closure:
    if implementation == own_ops.NAME:
        return own_ops.attention(op, *draw)
    if implementation == "fa3":
        return paged(op, draw, window=op.window)
    if implementation == "flash" and _needs_mask(op):
        raise Unsupported("torch's flash backend takes no mask, and a sliding window needs one")
    kv_len = min(op.kv_len, op.window) if op.window and op.q_len == 1 and op.causal else op.kv_len
    value_dim = op.v_head_dim or op.head_dim
    q = draw.normal((op.batch, op.heads, op.q_len, op.head_dim), op.dtype)
    k = draw.normal((op.batch, op.kv_heads, kv_len, op.head_dim), op.dtype)
    v = draw.normal((op.batch, op.kv_heads, kv_len, value_dim), op.dtype)
    settings: dict[str, object] = {}
    if op.causal and op.q_len > 1:
        if _needs_mask(op):
            settings["attn_mask"] = _window_mask(op, draw.device)
        elif op.q_len == op.kv_len:
            settings["is_causal"] = True
        else:
            settings["attn_mask"] = causal_lower_right(op.q_len, op.kv_len)
    groups = op.heads // op.kv_heads
    if groups > 1 and implementation == "efficient":  # that backend wants as many key heads as query heads
        return lambda: F.scaled_dot_product_attention(q, repeat(k, groups), repeat(v, groups), **settings)  # type: ignore[arg-type]
    if groups > 1:
        settings["enable_gqa"] = True
    return lambda: F.scaled_dot_product_attention(q, k, v, **settings)  # type: ignore[arg-type]


def paged(op: Attention, draw: Draw, stored: str = "", window: int = 0) -> Closure:
    """FlashAttention-3 over pages. `stored`: what queries, keys and values have; empty: as the result. A `window` that
    hides nothing has the kernel for windows all the same: the longest context is said to be twice as long."""
    flash = module("vllm.vllm_flash_attn", "fa3")
    if op.v_head_dim not in (0, op.head_dim):
        raise Unsupported("a paged cache holds keys and values of one size")
    pages = -(-op.kv_len // BLOCK_TOKENS)
    stored = stored or op.dtype
    cache = draw.normal((op.batch * pages, BLOCK_TOKENS, op.kv_heads, 2 * op.head_dim), stored)
    k, v = cache[..., : op.head_dim], cache[..., op.head_dim :]
    q = draw.normal((op.batch * op.q_len, op.heads, op.head_dim), stored)
    out = torch.empty(q.shape, dtype=torch_dtype(op.dtype), device=draw.device)
    # an fp8 cache has a scale for queries, keys and values of each sequence and head
    scale = torch.ones(1, device=draw.device).expand(op.batch, op.kv_heads) if stored == "fp8" else None
    table, starts, lengths = pages_of(op, draw)
    longest, splits = graph_layout(op)
    longest = max(longest, 2 * window)
    sides = (window - 1, 0) if window else (-1, -1)
    schedule = flash.get_scheduler_metadata(
        batch_size=op.batch, max_seqlen_q=op.q_len, max_seqlen_k=longest, num_heads_q=op.heads,
        num_heads_kv=op.kv_heads, headdim=op.head_dim, cache_seqlens=lengths, qkv_dtype=q.dtype, cu_seqlens_q=starts,
        page_size=BLOCK_TOKENS, causal=op.causal, window_size=sides, num_splits=splits,
    )  # fmt: skip

    def call() -> object:
        return flash.flash_attn_varlen_func(
            q=q, k=k, v=v, out=out, cu_seqlens_q=starts, max_seqlen_q=op.q_len, seqused_k=lengths,
            max_seqlen_k=longest, causal=op.causal, window_size=list(sides), block_table=table,
            scheduler_metadata=schedule, num_splits=splits, fa_version=3, q_descale=scale, k_descale=scale,
            v_descale=scale,
        )  # fmt: skip

    return call


def pages_of(op: Attention, draw: Draw) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Which pages each sequence has, where its queries start, and its length."""
    pages = -(-op.kv_len // BLOCK_TOKENS)
    order = draw.permutation(op.batch * pages).to(torch.int32)
    starts = torch.arange(0, op.batch * op.q_len + 1, op.q_len, device=draw.device, dtype=torch.int32)
    lengths = torch.full((op.batch,), op.kv_len, device=draw.device, dtype=torch.int32)
    return order.view(op.batch, pages), starts, lengths


def graph_layout(op: Attention) -> tuple[int, int]:
    """The longest context and the most splits: in a graph those that it was captured with."""
    if op.batch * op.q_len <= GRAPH_TOKENS:
        return max(op.kv_len, GRAPH_CONTEXT), MOST_SPLITS
    return op.kv_len, 0


def _needs_mask(op: Attention) -> bool:
    return bool(op.causal and op.q_len > 1 and op.window and op.kv_len > op.window)


def _window_mask(op: Attention, device: torch.device) -> torch.Tensor:
    return seen(op, op.kv_len, device) & ~seen(op, op.kv_len, device, before=op.window)


def seen(op: AnyAttention, keys: int, device: torch.device, before: int = 0) -> torch.Tensor:
    """Which keys each query sees where the last sees all, or those that lie at least so many `before` it."""
    last = torch.arange(keys - op.q_len, keys, device=device)[:, None] - before
    return torch.arange(keys, device=device)[None, :] <= last


def repeat(x: torch.Tensor, groups: int) -> torch.Tensor:
    """HF's repeat_kv: every key head copied for each query head of its group."""
    batch, heads, length, dim = x.shape
    return x[:, :, None].expand(batch, heads, groups, length, dim).reshape(batch, heads * groups, length, dim)


def additive_mask(op: Composed, device: torch.device) -> torch.Tensor:
    """HF's mask for decomposed attention: 0 where a query sees a key, the least number elsewhere."""
    dtype = torch_dtype(op.dtype)
    hidden, least = ~seen(op, op.keys, device), torch.finfo(dtype).min
    mask = torch.zeros((op.q_len, op.keys), dtype=dtype, device=device).masked_fill(hidden, least)
    return mask.expand(op.batch, 1, op.q_len, op.keys).contiguous()
