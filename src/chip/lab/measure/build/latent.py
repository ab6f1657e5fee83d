"""Attention over a latent cache, absorbed, and of prompts whose keys are wider than their values."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.engines.vllm.options import BLOCK_TOKENS
from chip.lab.measure.build import Closure, Draw, builds
from chip.lab.measure.build.attention import attention, graph_layout, pages_of, seen
from chip.lab.measure.vllm_ops import module
from chip.ops.latent import Mla, MlaPrompt


@builds("mla", gpu=("fa3", "torch"))
def mla(op: Mla, draw: Draw, implementation: str) -> Closure:
    """Absorbed latent attention. `torch`, F.scaled_dot_product_attention: one shared key of latent and rotated values,
    whose latent part is the value; heads of that width have no fused kernel in torch. `fa3`: FlashAttention-3 over
    pages of latents."""
    if implementation == "fa3":
        return _over_latents(op, draw)
    q = draw.normal((op.batch, op.heads, op.q_len, op.head_dim), op.dtype)
    k = draw.normal((op.batch, op.kv_heads, op.kv_len, op.head_dim), op.dtype)
    v = k[..., : op.v_head_dim or op.head_dim]
    mask = seen(op, op.kv_len, draw.device) if op.causal and op.q_len > 1 else None
    grouped = op.heads > op.kv_heads
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)


def _over_latents(op: Mla, draw: Draw) -> Closure:
    flash = module("vllm.vllm_flash_attn", "fa3")
    latent, rope_dim = op.v_head_dim, op.head_dim - op.v_head_dim
    pages = -(-op.kv_len // BLOCK_TOKENS)
    cache = draw.normal((op.batch * pages, BLOCK_TOKENS, op.head_dim), op.dtype)
    keys, values = cache[..., latent:].unsqueeze(-2), cache[..., :latent].unsqueeze(-2)
    rotated = draw.normal((op.batch * op.q_len, op.heads, rope_dim), op.dtype)
    absorbed = draw.normal((op.batch * op.q_len, op.heads, latent), op.dtype)
    table, starts, lengths = pages_of(op, draw)
    longest, splits = graph_layout(op)
    schedule = flash.get_scheduler_metadata(
        batch_size=op.batch, max_seqlen_q=op.q_len, max_seqlen_k=longest, num_heads_q=op.heads, num_heads_kv=1,
        headdim=rope_dim, cache_seqlens=lengths, qkv_dtype=cache.dtype, headdim_v=latent, page_size=BLOCK_TOKENS,
        cu_seqlens_q=starts, causal=op.causal, num_splits=splits,
    )  # fmt: skip
    return lambda: flash.flash_attn_varlen_func(
        q=rotated, k=keys, v=values, q_v=absorbed, max_seqlen_q=op.q_len, cu_seqlens_q=starts, max_seqlen_k=longest,
        seqused_k=lengths, block_table=table, softmax_scale=op.head_dim**-0.5, causal=op.causal, fa_version=3,
        scheduler_metadata=schedule, num_splits=splits,
    )  # fmt: skip


@builds("mla_prompt", gpu=("fa3", "torch"))
def mla_prompt(op: MlaPrompt, draw: Draw, implementation: str) -> Closure:
    """Attention of a prompt over keys that are wider than its values. `torch`, F.scaled_dot_product_attention; `fa3`:
    FlashAttention-3 without pages."""
    if implementation != "fa3":
        return attention(op, draw, implementation)
    flash = module("vllm.vllm_flash_attn", "fa3")
    q = draw.normal((op.batch * op.q_len, op.heads, op.head_dim), op.dtype)
    k = draw.normal((op.batch * op.kv_len, op.kv_heads, op.head_dim), op.dtype)
    v = draw.normal((op.batch * op.kv_len, op.kv_heads, op.v_head_dim or op.head_dim), op.dtype)
    queries, keys = (
        torch.arange(0, op.batch * n + 1, n, device=draw.device, dtype=torch.int32) for n in (op.q_len, op.kv_len)
    )
    return lambda: flash.flash_attn_varlen_func(
        q=q, k=k, v=v, softmax_scale=op.head_dim**-0.5, causal=op.causal, cu_seqlens_q=queries, cu_seqlens_k=keys,
        max_seqlen_q=op.q_len, max_seqlen_k=op.kv_len, fa_version=3,
    )  # fmt: skip
