"""Root-mean-square normalisation over the columns, with weight."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class RmsNorm(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "rms_norm"
    LANES: ClassVar[int] = 512  # 128 threads, four columns each
    FLOPS: ClassVar[int] = 4
    READS: ClassVar[int] = 1
    WRITES: ClassVar[int] = 1
    VECTORS: ClassVar[int] = 1
