"""Soft cap c * tanh(x / c) of every element (Gemma-2 logits)."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class Softcap(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "softcap"
    FLAT: ClassVar[bool] = True
    FLOPS: ClassVar[int] = 4
    READS: ClassVar[int] = 1
    WRITES: ClassVar[int] = 1
    VECTORS: ClassVar[int] = 0
