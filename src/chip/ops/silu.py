"""SiLU (swish) of every element: x * sigmoid(x)."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class Silu(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "silu"
    FLAT: ClassVar[bool] = True
    FLOPS: ClassVar[int] = 4
    READS: ClassVar[int] = 1
    WRITES: ClassVar[int] = 1
    VECTORS: ClassVar[int] = 0
