"""Attention as HF's GPT-J runs it: queries and keys multiplied in fp32, no sdpa."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, Unsupported, normal
from chip.measure.build.attention import additive_mask
from chip.ops.float_attention import FloatAttention


def build(
    op: FloatAttention, device: torch.device, generator: torch.Generator, implementation: str = "torch"
) -> Closure:
    if op.heads != op.kv_heads or op.v_head_dim:
        raise Unsupported("GPT-J has as many key heads as query heads, and values as wide as keys")
    q = normal((op.batch, op.q_len, op.heads, op.head_dim), op.dtype, device, generator).permute(0, 2, 1, 3)
    k = normal((op.batch, op.heads, op.keys, op.head_dim), op.dtype, device, generator)
    v = normal((op.batch, op.heads, op.keys, op.head_dim), op.dtype, device, generator)
    mask, scale = additive_mask(op, device), math.sqrt(op.head_dim)

    def call() -> object:
        scores = torch.matmul(q.to(torch.float32), k.to(torch.float32).transpose(-1, -2)) / scale
        shares = F.softmax(scores + mask, dim=-1).to(v.dtype)
        return torch.matmul(shares, v).permute(0, 2, 1, 3).contiguous()

    return call
