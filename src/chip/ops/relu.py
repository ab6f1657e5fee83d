"""ReLU of every element."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class Relu(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "relu"
    FLAT: ClassVar[bool] = True
    FLOPS: ClassVar[int] = 1
    READS: ClassVar[int] = 1
    WRITES: ClassVar[int] = 1
    VECTORS: ClassVar[int] = 0
