"""Attention over an fp8 cache with fp8 queries: `fa3`, FlashAttention-3 over pages, called as vLLM calls it (from an
environment that has vLLM); `torch`, keys and values widened first, as `fp8_cache_attention`."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, fp8_cache_attention
from chip.measure.build.attention import paged
from chip.ops.fp8_attention import Fp8Attention


def implementations(op: Fp8Attention, device_type: str) -> tuple[str, ...]:
    return ("torch",) if device_type == "cpu" else ("fa3", "torch")


def build(op: Fp8Attention, device: torch.device, generator: torch.Generator, implementation: str = "fa3") -> Closure:
    if implementation == "fa3":
        return paged(op, device, generator, "fp8")
    return fp8_cache_attention.build(op, device, generator)
