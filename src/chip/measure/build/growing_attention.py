"""What HF's sdpa attention calls with a dynamic cache: keys and values joined with the new ones, then
F.scaled_dot_product_attention without a mask, with the flash backend unless the implementation names another."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch.nn.attention import sdpa_kernel

from chip.measure.build import Closure, Unsupported, normal
from chip.measure.build.attention import BACKENDS
from chip.ops.growing_attention import GrowingAttention


def implementations(op: GrowingAttention, device_type: str) -> tuple[str, ...]:
    return ("flash", "cudnn", "efficient", "math", "torch") if device_type != "cpu" else ("torch", "flash", "math")


def around(op: GrowingAttention, implementation: str) -> AbstractContextManager[object]:
    return sdpa_kernel(BACKENDS[implementation]) if implementation in BACKENDS else nullcontext()


def build(
    op: GrowingAttention, device: torch.device, generator: torch.Generator, implementation: str = "torch"
) -> Closure:
    if op.window or op.q_len > 1:
        raise Unsupported("only single tokens without a window take this way; others run under a mask")
    value_dim = op.v_head_dim or op.head_dim
    q = normal((op.batch, op.heads, 1, op.head_dim), op.dtype, device, generator)
    old, new = (op.kv_len - 1, 1) if op.kv_len > 1 else (1, 1)
    k, k_new = (normal((op.batch, op.kv_heads, n, op.head_dim), op.dtype, device, generator) for n in (old, new))
    v, v_new = (normal((op.batch, op.kv_heads, n, value_dim), op.dtype, device, generator) for n in (old, new))
    gqa = op.heads > op.kv_heads

    def call() -> object:
        keys, values = torch.cat((k, k_new), dim=-2), torch.cat((v, v_new), dim=-2)
        return F.scaled_dot_product_attention(q, keys, values, enable_gqa=gqa)

    return call
