"""Gated activation silu(x) * y: reads two rows x cols tensors, writes one. Also stands for gelu(x) * y."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class SiluMul(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "silu_mul"
    FLAT: ClassVar[bool] = True
    FLOPS: ClassVar[int] = 5
    READS: ClassVar[int] = 2
    WRITES: ClassVar[int] = 1
    VECTORS: ClassVar[int] = 0
