"""Attention as HF's gpt-oss runs it: repeat_kv, scores with a sink joined to each row, no sdpa."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, Unsupported, normal
from chip.measure.build.attention import additive_mask, repeat
from chip.ops.sink_attention import SinkAttention


def build(
    op: SinkAttention, device: torch.device, generator: torch.Generator, implementation: str = "torch"
) -> Closure:
    if op.v_head_dim:
        raise Unsupported("gpt-oss has values as wide as keys")
    q = normal((op.batch, op.heads, op.q_len, op.head_dim), op.dtype, device, generator)
    k = normal((op.batch, op.kv_heads, op.keys, op.head_dim), op.dtype, device, generator)
    v = normal((op.batch, op.kv_heads, op.keys, op.head_dim), op.dtype, device, generator)
    sink = normal((op.heads,), op.dtype, device, generator)
    mask, scale, groups = additive_mask(op, device), op.head_dim**-0.5, op.heads // op.kv_heads

    def call() -> object:
        keys, values = repeat(k, groups), repeat(v, groups)
        scores = torch.matmul(q, keys.transpose(2, 3)) * scale + mask
        sinks = sink.reshape(1, -1, 1, 1).expand(op.batch, -1, op.q_len, -1)
        joined = torch.cat([scores, sinks], dim=-1)
        joined = joined - joined.max(dim=-1, keepdim=True).values
        shares = F.softmax(joined, dim=-1, dtype=joined.dtype)[..., :-1]
        return torch.matmul(shares, values).transpose(1, 2).contiguous()

    return call
