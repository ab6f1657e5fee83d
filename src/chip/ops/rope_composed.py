"""Rotary positions as HF's modules spell them: x cos + rotate_half(x) sin, five kernels for queries, five for keys."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.rope import Rope
from chip.types import Cost


class RopeComposed(Rope):
    __slots__ = ()
    kind: ClassVar[str] = "rope_composed"
    KERNELS: ClassVar[int] = 10

    def cost(self) -> Cost:
        elements, width = self.rows * self.heads * self.head_dim, BYTES[self.dtype]
        # times cos, minus half, join the halves, times sin, add
        read = elements * (1 + 0.5 + 1 + 1 + 2) + 2 * self.rows * self.head_dim
        written = elements * (1 + 0.5 + 1 + 1 + 1)
        return Cost(3 * elements, read * width, written * width)
