"""Layer normalisation over the columns, with weight and bias: mean, variance, scale, shift."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class LayerNorm(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "layer_norm"
    LANES: ClassVar[int] = 512  # 128 threads, four columns each
    FLOPS: ClassVar[int] = 8
    READS: ClassVar[int] = 1
    WRITES: ClassVar[int] = 1
    VECTORS: ClassVar[int] = 2
