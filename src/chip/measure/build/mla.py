"""Absorbed latent attention. `torch`, F.scaled_dot_product_attention: one shared key of latent and rotated values,
whose latent part is the value; heads of that width have no fused kernel in torch. `fa3`: FlashAttention-3 over pages of
latents, called as vLLM calls it (from an environment that has vLLM)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.engines.vllm.options import BLOCK_TOKENS
from chip.measure.build import Closure, Unsupported, normal
from chip.measure.build.attention import graph_layout, pages_of
from chip.ops.mla import Mla


def implementations(op: Mla, device_type: str) -> tuple[str, ...]:
    return ("torch",) if device_type == "cpu" else ("fa3", "torch")


def build(op: Mla, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    if implementation == "fa3":
        return _paged(op, device, generator)
    q = normal((op.batch, op.heads, op.q_len, op.head_dim), op.dtype, device, generator)
    k = normal((op.batch, op.kv_heads, op.kv_len, op.head_dim), op.dtype, device, generator)
    v = k[..., : op.v_head_dim or op.head_dim]
    mask = None
    if op.causal and op.q_len > 1:
        ones = torch.ones(op.q_len, op.kv_len, dtype=torch.bool, device=device)
        mask = ones.tril(op.kv_len - op.q_len)
    grouped = op.heads > op.kv_heads
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)


def _paged(op: Mla, device: torch.device, generator: torch.Generator) -> Closure:
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func, get_scheduler_metadata
    except ImportError as e:
        raise Unsupported(f"fa3 is part of vLLM, which is not installed here ({e})") from None
    latent, rope_dim = op.v_head_dim, op.head_dim - op.v_head_dim
    pages = -(-op.kv_len // BLOCK_TOKENS)
    cache = normal((op.batch * pages, BLOCK_TOKENS, op.head_dim), op.dtype, device, generator)
    keys, values = cache[..., latent:].unsqueeze(-2), cache[..., :latent].unsqueeze(-2)
    rotated = normal((op.batch * op.q_len, op.heads, rope_dim), op.dtype, device, generator)
    absorbed = normal((op.batch * op.q_len, op.heads, latent), op.dtype, device, generator)
    table, starts, lengths = pages_of(op, device, generator)
    longest, splits = graph_layout(op)
    schedule = get_scheduler_metadata(
        batch_size=op.batch, max_seqlen_q=op.q_len, max_seqlen_k=longest, num_heads_q=op.heads, num_heads_kv=1,
        headdim=rope_dim, cache_seqlens=lengths, qkv_dtype=cache.dtype, headdim_v=latent, page_size=BLOCK_TOKENS,
        cu_seqlens_q=starts, causal=op.causal, num_splits=splits,
    )  # fmt: skip
    return lambda: flash_attn_varlen_func(
        q=rotated, k=keys, v=values, q_v=absorbed, max_seqlen_q=op.q_len, cu_seqlens_q=starts, max_seqlen_k=longest,
        seqused_k=lengths, block_table=table, softmax_scale=op.head_dim**-0.5, causal=op.causal, fa_version=3,
        scheduler_metadata=schedule, num_splits=splits,
    )  # fmt: skip
