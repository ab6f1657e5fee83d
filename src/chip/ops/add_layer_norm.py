"""Residual addition fused with layer normalisation: reads x and the residual, writes the sum and its norm."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class AddLayerNorm(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "add_layer_norm"
    LANES: ClassVar[int] = 512  # 128 threads, four columns each
    FLOPS: ClassVar[int] = 9
    READS: ClassVar[int] = 2
    WRITES: ClassVar[int] = 2
    VECTORS: ClassVar[int] = 2
