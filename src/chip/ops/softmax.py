"""Softmax over the columns: maximum, exponential, sum, division."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class Softmax(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "softmax"
    # torch: a warp a row, the row in registers, the row in shared memory, neither
    EDGES: ClassVar[tuple[int, ...]] = (2048, 9216, 24511)
    FLOPS: ClassVar[int] = 5
    READS: ClassVar[int] = 1
    WRITES: ClassVar[int] = 1
    VECTORS: ClassVar[int] = 0
