"""Attention over caches that are stored or grow otherwise, and under a window in a graph."""

from __future__ import annotations

from dataclasses import fields
from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.attention import Attention, visible_keys, visible_pairs
from chip.types import Cost, Seq


class Fp8Attention(Attention):
    """Attention over an fp8 cache, multiplied in fp8 (FlashAttention-3): queries are rounded before it, the result has
    `dtype`."""

    __slots__ = ()
    kind: ClassVar[str] = "fp8_attention"

    def cost(self) -> Cost:
        wide = Attention.cost(self)
        return wide._replace(read_bytes=wide.read_bytes * BYTES["fp8"] / BYTES[self.dtype])

    @property
    def compute(self) -> str:
        return "matmul_fp8"

    @property
    def cache_width_bytes(self) -> float:
        return BYTES["fp8"]


class Fp8CacheAttention(Attention):
    """Attention over an fp8 cache, multiplied in `dtype`: keys and values are widened as they are read. What GPUs
    without fp8 products run."""

    __slots__ = ()
    kind: ClassVar[str] = "fp8_cache_attention"

    def cost(self) -> Cost:
        wide = Attention.cost(self)
        queries = self.batch * self.q_len * self.heads * self.head_dim * BYTES[self.dtype]
        cache = (wide.read_bytes - queries) * BYTES["fp8"] / BYTES[self.dtype]
        return wide._replace(read_bytes=queries + cache)

    @property
    def cache_width_bytes(self) -> float:
        return BYTES["fp8"]


class GrowingAttention(Attention):
    """Attention over a cache that grows by concatenation (HF DynamicCache).

    Before the attention itself, keys and values are copied into new tensors with one token more.
    """

    __slots__ = ()
    kind: ClassVar[str] = "growing_attention"
    KERNELS: ClassVar[int] = 4

    def cost(self) -> Cost:
        flops, read, written = Attention.cost(self)
        both = self.head_dim + (self.v_head_dim or self.head_dim)
        cached = visible_keys(
            self.q_len, self.kv_len, self.causal, self.window
        )  # a window's cache drops what is past it
        copied = self.batch * cached * self.kv_heads * both * BYTES[self.dtype]
        return Cost(flops, read + copied, written + copied)

    def moved_bytes(self) -> tuple[float, float]:
        _, read, written = Attention.cost(self)
        _, all_read, all_written = self.cost()
        return read + written, all_read + all_written - read - written


class ChunkedAttention(Attention):
    """Attention of tokens to those of their own chunk (Llama 4): `window` tokens long, beginning at its multiples.
    It stands in programs without its sequences only."""

    __slots__ = ()

    def over(self, seq: Seq) -> Attention:  # type: ignore[override]
        """Attention under the window that shows as many pairs of query and key."""
        total, wanted = seq.past + seq.new, pairs_in_chunks(seq.new, seq.past, self.window)
        low, high = 1, min(self.window, total)
        while low < high:
            middle = (low + high) // 2
            if visible_pairs(seq.new, total, True, middle) < wanted:
                low = middle + 1
            else:
                high = middle
        sizes = (seq.count, self.heads, self.kv_heads, self.head_dim, seq.new, total)
        return Attention(*sizes, True, low if low < total else 0, self.v_head_dim, self.dtype)


def pairs_in_chunks(new: int, past: int, chunk: int) -> int:
    """Of query and key, for tokens after `past` others that see back to the beginning of their chunk."""

    def before(tokens: int) -> int:
        whole, rest = divmod(tokens, chunk)
        return whole * (chunk * (chunk + 1) // 2) + rest * (rest + 1) // 2

    return before(past + new) - before(past)


class LocalAttention(Attention):
    """Attention under a sliding window as FlashAttention-3 runs it in a graph.

    The CUDA graph was captured for the longest context, so that the kernel for windows runs (larger tiles, a mask) even
    while a context is shorter than the window.

    A `window` of 0 is one that hides nothing yet.
    """

    __slots__ = ()
    kind: ClassVar[str] = "local_attention"

    @property
    def plain(self) -> Attention:
        """What stands for it where it was not measured."""
        return Attention(*(getattr(self, f.name) for f in fields(self)))
