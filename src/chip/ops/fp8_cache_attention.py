"""Attention over an fp8 cache, multiplied in `dtype`: keys and values are widened as they are read. What GPUs without
fp8 products run."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.attention import Attention
from chip.types import Cost


class Fp8CacheAttention(Attention):
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
