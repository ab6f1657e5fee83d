"""GELU of every element (counted as 8 FLOPs: cube, tanh and the products around it)."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class Gelu(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "gelu"
    FLAT: ClassVar[bool] = True
    FLOPS: ClassVar[int] = 8
    READS: ClassVar[int] = 1
    WRITES: ClassVar[int] = 1
    VECTORS: ClassVar[int] = 0
