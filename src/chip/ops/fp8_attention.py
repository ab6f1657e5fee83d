"""Attention over an fp8 cache, multiplied in fp8 (FlashAttention-3): queries are rounded before it, the result has
`dtype`."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.attention import Attention
from chip.types import Cost


class Fp8Attention(Attention):
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
