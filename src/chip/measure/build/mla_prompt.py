"""Attention of a prompt over keys that are wider than its values. `torch`, F.scaled_dot_product_attention; `fa3`:
FlashAttention-3 without pages, called as vLLM calls it (from an environment that has vLLM)."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, Unsupported, attention, normal
from chip.ops.mla_prompt import MlaPrompt


def implementations(op: MlaPrompt, device_type: str) -> tuple[str, ...]:
    return ("torch",) if device_type == "cpu" else ("fa3", "torch")


def build(op: MlaPrompt, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    if implementation != "fa3":
        return attention.build(op, device, generator, implementation)
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func
    except ImportError as e:
        raise Unsupported(f"fa3 is part of vLLM, which is not installed here ({e})") from None
    q = normal((op.batch * op.q_len, op.heads, op.head_dim), op.dtype, device, generator)
    k = normal((op.batch * op.kv_len, op.kv_heads, op.head_dim), op.dtype, device, generator)
    v = normal((op.batch * op.kv_len, op.kv_heads, op.v_head_dim or op.head_dim), op.dtype, device, generator)
    queries, keys = (
        torch.arange(0, op.batch * n + 1, n, device=device, dtype=torch.int32) for n in (op.q_len, op.kv_len)
    )
    return lambda: flash_attn_varlen_func(
        q=q, k=k, v=v, softmax_scale=op.head_dim**-0.5, causal=op.causal, cu_seqlens_q=queries, cu_seqlens_k=keys,
        max_seqlen_q=op.q_len, max_seqlen_k=op.kv_len, fa_version=3,
    )  # fmt: skip
