"""GELU as HF's `gelu_fast` and BLOOM spell it, in nine kernels: 0.5 x (1 + tanh(c x (1 + 0.044715 x x)))."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise
from chip.ops.gelu import Gelu


class GeluFast(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "gelu_fast"
    FLAT: ClassVar[bool] = True
    KERNELS: ClassVar[int] = 9
    FLOPS: ClassVar[int] = Gelu.FLOPS
    READS: ClassVar[int] = 12  # three of the nine are products of two
    WRITES: ClassVar[int] = 9
