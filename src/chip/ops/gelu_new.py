"""GELU as HF's `gelu_new` spells it, in eight kernels: 0.5 x (1 + tanh(c (x + 0.044715 x^3)))."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise
from chip.ops.gelu import Gelu


class GeluNew(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "gelu_new"
    FLAT: ClassVar[bool] = True
    KERNELS: ClassVar[int] = 8
    FLOPS: ClassVar[int] = Gelu.FLOPS
    READS: ClassVar[int] = 10  # of the eight, the sum with x and the last product read two
    WRITES: ClassVar[int] = 8
