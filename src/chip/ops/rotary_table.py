"""Cosines and sines of a step's positions, as HF computes them. Once a step, in fp32, `cols` angles for each token."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.elementwise import Elementwise
from chip.types import Cost

FP32 = BYTES["fp32"]


class RotaryTable(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "rotary_table"
    KERNELS: ClassVar[int] = 10

    def cost(self) -> Cost:
        elements, width = self.rows * self.cols, BYTES[self.dtype]
        # half of them by an outer product, joined twice over; cosine and sine, both scaled, both narrowed
        return Cost(6 * elements, 7.5 * elements * FP32, elements * (5.5 * FP32 + 2 * width))
