"""Attention that HF's modules spell out in torch operators, and the join of a cache that grows."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from chip.lab.measure.build import Closure, Draw, Unsupported, builds
from chip.lab.measure.build.attention import additive_mask, repeat, seen
from chip.ops.composed import AlibiAttention, BroadcastAttention, FloatAttention, KvJoin, SinkAttention


@builds("alibi_attention")
def alibi_attention(op: AlibiAttention, draw: Draw, implementation: str) -> Closure:
    """Attention as HF's BLOOM runs it from its merged projection on: no sdpa, every pass over the scores a kernel."""
    if op.heads != op.kv_heads or op.v_head_dim:
        raise Unsupported("BLOOM has as many key heads as query heads, and values as wide as keys")
    batch, heads, dim, queries, keys = op.batch, op.heads, op.head_dim, op.q_len, op.keys
    merged = draw.normal((batch, queries, heads, 3, dim), op.dtype)
    q = merged[..., 0, :].transpose(1, 2)
    k, v = (draw.normal((batch, heads, keys, dim), op.dtype) for _ in range(2))
    alibi = draw.normal((batch * heads, 1, keys), op.dtype)
    mask = additive_mask(op, draw.device)

    def call() -> object:
        stacked = q.reshape(batch * heads, -1, dim)
        scores = alibi.baddbmm(stacked, k.view(batch * heads, -1, dim).transpose(-1, -2), beta=1.0, alpha=dim**-0.5)
        weights = scores.view(batch, heads, queries, -1) + mask
        shares = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.bmm(shares.view(batch * heads, queries, -1), v.view(batch * heads, -1, dim))
        return out.view(batch, heads, queries, dim).permute(0, 2, 1, 3).reshape(batch, queries, heads * dim)

    return call


@builds("broadcast_attention")
def broadcast_attention(op: BroadcastAttention, draw: Draw, implementation: str) -> Closure:
    """Attention to one key head by torch's sdpa, heads not grouped, as HF's Falcon asks for it."""
    if op.kv_heads != 1 or op.v_head_dim:
        raise Unsupported("Falcon's keys have one head, and values are as wide")
    q = draw.normal((op.batch, op.q_len, op.heads, op.head_dim), op.dtype).permute(0, 2, 1, 3)
    k, v = (draw.normal((op.batch, 1, op.keys, op.head_dim), op.dtype) for _ in range(2))
    mask = seen(op, op.keys, draw.device).expand(op.batch, 1, op.q_len, op.keys).contiguous()

    def call() -> object:
        return F.scaled_dot_product_attention(q, k, v, mask).permute(0, 2, 1, 3).contiguous()

    return call


@builds("float_attention")
def float_attention(op: FloatAttention, draw: Draw, implementation: str) -> Closure:
    """Attention as HF's GPT-J runs it: queries and keys multiplied in fp32, no sdpa."""
    if op.heads != op.kv_heads or op.v_head_dim:
        raise Unsupported("GPT-J has as many key heads as query heads, and values as wide as keys")
    q = draw.normal((op.batch, op.q_len, op.heads, op.head_dim), op.dtype).permute(0, 2, 1, 3)
    k, v = (draw.normal((op.batch, op.heads, op.keys, op.head_dim), op.dtype) for _ in range(2))
    mask, scale = additive_mask(op, draw.device), math.sqrt(op.head_dim)

    def call() -> object:
        scores = torch.matmul(q.to(torch.float32), k.to(torch.float32).transpose(-1, -2)) / scale
        shares = F.softmax(scores + mask, dim=-1).to(v.dtype)
        return torch.matmul(shares, v).permute(0, 2, 1, 3).contiguous()

    return call


@builds("sink_attention")
def sink_attention(op: SinkAttention, draw: Draw, implementation: str) -> Closure:
    """Attention as HF's gpt-oss runs it: repeat_kv, scores with a sink joined to each row, no sdpa."""
    if op.v_head_dim:
        raise Unsupported("gpt-oss has values as wide as keys")
    q = draw.normal((op.batch, op.heads, op.q_len, op.head_dim), op.dtype)
    k, v = (draw.normal((op.batch, op.kv_heads, op.keys, op.head_dim), op.dtype) for _ in range(2))
    sink = draw.normal((op.heads,), op.dtype)
    mask, scale, groups = additive_mask(op, draw.device), op.head_dim**-0.5, op.heads // op.kv_heads

    def call() -> object:
        keys, values = repeat(k, groups), repeat(v, groups)
        scores = torch.matmul(q, keys.transpose(2, 3)) * scale + mask
        sinks = sink.reshape(1, -1, 1, 1).expand(op.batch, -1, op.q_len, -1)
        joined = torch.cat([scores, sinks], dim=-1)
        joined = joined - joined.max(dim=-1, keepdim=True).values
        shares = F.softmax(joined, dim=-1, dtype=joined.dtype)[..., :-1]
        return torch.matmul(shares, values).transpose(1, 2).contiguous()

    return call


@builds("kv_join")
def kv_join(op: KvJoin, draw: Draw, implementation: str) -> Closure:
    """torch.cat of keys and of values with those of a new token, as HF's DynamicCache does it."""
    new = min(op.q_len, op.keys)

    def pair(width: int) -> tuple[torch.Tensor, ...]:
        shapes = [(op.batch, op.kv_heads, n, width) for n in (op.keys - new, new)]
        return tuple(draw.normal(shape, op.dtype) for shape in shapes)

    k, v = pair(op.head_dim), pair(op.v_head_dim or op.head_dim)
    return lambda: (torch.cat(k, dim=-2), torch.cat(v, dim=-2))
