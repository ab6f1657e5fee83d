"""Standardise each row: (x - mean) / std, no weights."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class RowNormalize(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "row_normalize"
    FLOPS: ClassVar[int] = 6
    READS: ClassVar[int] = 1
    WRITES: ClassVar[int] = 1
    VECTORS: ClassVar[int] = 0
