"""Attention over an fp8 cache: `torch`, keys and values widened, then F.scaled_dot_product_attention. Engines widen
inside one kernel (FlashInfer, Triton), which is not called here."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

from chip.measure.build import Closure, Unsupported, normal, torch_dtype
from chip.ops.attention import Attention


def build(op: Attention, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    if op.window or op.v_head_dim not in (0, op.head_dim) or not op.causal:
        raise Unsupported("attention over an fp8 cache is run without a window, with values as wide as keys")
    wide = torch_dtype(op.dtype)
    q = normal((op.batch, op.heads, op.q_len, op.head_dim), op.dtype, device, generator)
    shape = (op.batch, op.kv_heads, op.kv_len, op.head_dim)
    k, v = (normal(shape, "fp8", device, generator) for _ in range(2))
    mask = causal_lower_right(op.q_len, op.kv_len) if op.q_len > 1 else None
    return lambda: F.scaled_dot_product_attention(q, k.to(wide), v.to(wide), attn_mask=mask, enable_gqa=True)
