"""Absorbed latent attention through F.scaled_dot_product_attention: one shared key of latent and rotated values, whose
latent part is the value. Heads of that width have no fused kernel in torch, so torch takes its unfused path."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, normal
from chip.ops.mla import Mla


def build(op: Mla, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    width = op.latent + op.rope_dim
    q = normal((op.batch, op.heads, op.q_len, width), op.dtype, device, generator)
    k = normal((op.batch, 1, op.kv_len, width), op.dtype, device, generator)
    v = k[..., : op.latent]
    mask = None
    if op.causal and op.q_len > 1:
        ones = torch.ones(op.q_len, op.kv_len, dtype=torch.bool, device=device)
        mask = ones.tril(op.kv_len - op.q_len)
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=op.heads > 1)
