"""New keys and values copied into a cache: `torch`, of fixed size (index_copy_, as HF's StaticCache does), keys then
values; `paged`, into pages in one kernel, as vLLM calls it (from an environment that has vLLM)."""

from __future__ import annotations

import torch

from chip.engines.vllm.options import BLOCK_TOKENS
from chip.measure.build import Closure, Unsupported, normal
from chip.ops.kv_append import KvAppend

HEAD_DIM = 128


def implementations(op: KvAppend, device_type: str) -> tuple[str, ...]:
    return ("torch",) if device_type == "cpu" else ("torch", "paged")


def build(op: KvAppend, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    if implementation == "paged":
        return paged(op, device, generator)
    widths = (op.cols - op.cols // 2, op.cols // 2)
    new = [normal((op.rows, w), op.dtype, device, generator) for w in widths]
    cache = [torch.empty((2 * op.rows, w), dtype=n.dtype, device=device) for w, n in zip(widths, new)]
    positions = torch.arange(op.rows // 2, op.rows // 2 + op.rows, device=device)

    def call() -> object:
        return cache[0].index_copy_(0, positions, new[0]), cache[1].index_copy_(0, positions, new[1])

    return call


def paged(op: KvAppend, device: torch.device, generator: torch.Generator, stored: str = "") -> Closure:
    """`stored`: what the cache holds, where that is not what comes."""
    try:
        from vllm._custom_ops import reshape_and_cache_flash
    except ImportError as e:
        raise Unsupported(f"paged writes are part of vLLM, which is not installed here ({e})") from None
    heads, rest = divmod(op.cols, 2 * HEAD_DIM)
    if rest or not heads:
        raise Unsupported(f"{op.cols} values a token are not whole heads of {HEAD_DIM}")
    pages = -(-2 * op.rows // BLOCK_TOKENS)
    cache = normal((pages, BLOCK_TOKENS, heads, 2 * HEAD_DIM), stored or op.dtype, device, generator)
    if stored:  # the engine keeps a rounded cache as bytes
        cache = cache.view(torch.uint8)
    keys, values = cache[..., :HEAD_DIM], cache[..., HEAD_DIM:]
    merged = normal((op.rows, 3, heads, HEAD_DIM), op.dtype, device, generator)  # what the qkv product left
    slots = torch.randperm(pages * BLOCK_TOKENS, device=device, generator=generator)[: op.rows]
    one = torch.ones((), device=device)
    return lambda: reshape_and_cache_flash(merged[:, 1], merged[:, 2], keys, values, slots, stored or "auto", one, one)
