"""What HF's sdpa attention calls with a static cache: repeat_kv, then F.scaled_dot_product_attention under a mask.

The backend is torch's own choice (cuDNN on Hopper), unless the implementation names one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch.nn.attention import sdpa_kernel

from chip.measure.build import Closure, normal
from chip.measure.build.attention import BACKENDS, repeat
from chip.ops.masked_attention import MaskedAttention


def implementations(op: MaskedAttention, device_type: str) -> tuple[str, ...]:
    return ("torch", "cudnn", "efficient", "math") if device_type != "cpu" else ("torch", "math")


def around(op: MaskedAttention, implementation: str) -> AbstractContextManager[object]:
    """All backends to choose from: importing vLLM switches cuDNN's off, and what takes its place can take ten times as
    long."""
    chosen = [BACKENDS[implementation]] if implementation in BACKENDS else [*BACKENDS.values()]
    held: AbstractContextManager[object] = sdpa_kernel(chosen)
    return held


def build(
    op: MaskedAttention, device: torch.device, generator: torch.Generator, implementation: str = "torch"
) -> Closure:
    value_dim = op.v_head_dim or op.head_dim
    # queries as a projection and a rotation leave them: tokens before heads in memory
    q = normal((op.batch, op.q_len, op.heads, op.head_dim), op.dtype, device, generator).transpose(1, 2)
    k = normal((op.batch, op.kv_heads, op.kv_len, op.head_dim), op.dtype, device, generator)
    v = normal((op.batch, op.kv_heads, op.kv_len, value_dim), op.dtype, device, generator)
    last = torch.arange(op.kv_len - op.q_len, op.kv_len, device=device)[:, None]
    seen = torch.arange(op.kv_len, device=device)[None, :] <= last
    mask = seen[None, None].expand(op.batch, 1, op.q_len, op.kv_len).contiguous()
    groups = op.heads // op.kv_heads
    if groups == 1:
        return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return lambda: F.scaled_dot_product_attention(q, repeat(k, groups), repeat(v, groups), attn_mask=mask)
