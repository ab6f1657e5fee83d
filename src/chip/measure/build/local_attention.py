"""Attention under a sliding window: `fa3`, FlashAttention-3 over pages, called as vLLM calls it in a graph for contexts
longer than this one; `torch`, as `attention`."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, attention
from chip.ops.local_attention import LocalAttention


def implementations(op: LocalAttention, device_type: str) -> tuple[str, ...]:
    return ("torch",) if device_type == "cpu" else ("fa3", "torch")


def build(op: LocalAttention, device: torch.device, generator: torch.Generator, implementation: str = "fa3") -> Closure:
    if implementation == "fa3":
        return attention.paged(op, device, generator, window=op.window or op.kv_len)
    return attention.build(op, device, generator)
