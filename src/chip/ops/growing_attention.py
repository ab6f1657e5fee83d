"""Attention over a cache that grows by concatenation (HF DynamicCache).

Before the attention itself, keys and values are copied into new tensors with one token more.
"""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.attention import Attention, visible_keys
from chip.types import Cost


class GrowingAttention(Attention):
    __slots__ = ()
    kind: ClassVar[str] = "growing_attention"
    KERNELS: ClassVar[int] = 4

    def cost(self) -> Cost:
        flops, read, written = Attention.cost(self)
        both = self.head_dim + (self.v_head_dim or self.head_dim)
        kept = visible_keys(self.q_len, self.kv_len, self.causal, self.window)  # a window's cache drops what is past it
        copied = self.batch * kept * self.kv_heads * both * BYTES[self.dtype]
        return Cost(flops, read + copied, written + copied)

    def moved_bytes(self) -> tuple[float, float]:
        _, read, written = Attention.cost(self)
        _, all_read, all_written = self.cost()
        return read + written, all_read + all_written - read - written
