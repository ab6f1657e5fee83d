"""Attention to one key head by torch's sdpa, heads not grouped, as HF's Falcon asks for it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, Unsupported, normal
from chip.ops.broadcast_attention import BroadcastAttention


def build(
    op: BroadcastAttention, device: torch.device, generator: torch.Generator, implementation: str = "torch"
) -> Closure:
    if op.kv_heads != 1 or op.v_head_dim:
        raise Unsupported("Falcon's keys have one head, and values are as wide")
    q = normal((op.batch, op.q_len, op.heads, op.head_dim), op.dtype, device, generator).permute(0, 2, 1, 3)
    k = normal((op.batch, 1, op.keys, op.head_dim), op.dtype, device, generator)
    v = normal((op.batch, 1, op.keys, op.head_dim), op.dtype, device, generator)
    last = torch.arange(op.keys - op.q_len, op.keys, device=device)[:, None]
    seen = torch.arange(op.keys, device=device)[None, :] <= last
    mask = seen.expand(op.batch, 1, op.q_len, op.keys).contiguous()

    def call() -> object:
        return F.scaled_dot_product_attention(q, k, v, mask).permute(0, 2, 1, 3).contiguous()

    return call
