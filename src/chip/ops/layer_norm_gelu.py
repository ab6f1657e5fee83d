"""Layer normalisation followed by GELU, as one operator: the tensor is read once and written once."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class LayerNormGelu(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "layer_norm_gelu"
    FLOPS: ClassVar[int] = 16
    READS: ClassVar[int] = 1
    WRITES: ClassVar[int] = 1
    VECTORS: ClassVar[int] = 2
