"""Attention as HF's BLOOM runs it from its merged projection on: no sdpa, every pass over the scores a kernel."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, Unsupported, normal
from chip.measure.build.attention import additive_mask
from chip.ops.alibi_attention import AlibiAttention


def build(
    op: AlibiAttention, device: torch.device, generator: torch.Generator, implementation: str = "torch"
) -> Closure:
    if op.heads != op.kv_heads or op.v_head_dim:
        raise Unsupported("BLOOM has as many key heads as query heads, and values as wide as keys")
    batch, heads, dim, queries, keys = op.batch, op.heads, op.head_dim, op.q_len, op.keys
    merged = normal((batch, queries, heads, 3, dim), op.dtype, device, generator)
    q = merged[..., 0, :].transpose(1, 2)
    k = normal((batch, heads, keys, dim), op.dtype, device, generator)
    v = normal((batch, heads, keys, dim), op.dtype, device, generator)
    alibi = normal((batch * heads, 1, keys), op.dtype, device, generator)
    mask = additive_mask(op, device)

    def call() -> object:
        stacked = q.reshape(batch * heads, -1, dim)
        scores = alibi.baddbmm(stacked, k.view(batch * heads, -1, dim).transpose(-1, -2), beta=1.0, alpha=dim**-0.5)
        weights = scores.view(batch, heads, queries, -1) + mask
        shares = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.bmm(shares.view(batch * heads, queries, -1), v.view(batch * heads, -1, dim))
        return out.view(batch, heads, queries, dim).permute(0, 2, 1, 3).reshape(batch, queries, heads * dim)

    return call
