"""Multiplication of every element by one scalar (embedding and residual multipliers)."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class Scale(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "scale"
    FLAT: ClassVar[bool] = True
    FLOPS: ClassVar[int] = 1
    READS: ClassVar[int] = 1
    WRITES: ClassVar[int] = 1
    VECTORS: ClassVar[int] = 0
