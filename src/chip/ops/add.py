"""Elementwise addition of two tensors (a residual connection)."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class Add(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "add"
    FLAT: ClassVar[bool] = True
    FLOPS: ClassVar[int] = 1
    READS: ClassVar[int] = 2
    WRITES: ClassVar[int] = 1
    VECTORS: ClassVar[int] = 0
