"""A norm's weight made ready each time, as HF's Gemma has it: widened to fp32, and one added. Its `cols` values count,
however many rows the norm has."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.elementwise import Elementwise
from chip.types import Cost

FP32 = BYTES["fp32"]


class NormWeight(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "norm_weight"
    KERNELS: ClassVar[int] = 2

    def cost(self) -> Cost:
        return Cost(self.cols, self.cols * (BYTES[self.dtype] + FP32), 2 * self.cols * FP32)
