"""RMS normalisation as HF's modules spell it: eight kernels that pass over the rows again and again.

x is widened to fp32, squared, averaged, scaled by the inverse root, narrowed and multiplied by the weight.
"""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.elementwise import Elementwise
from chip.types import Cost

FP32 = BYTES["fp32"]


class RmsNormComposed(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "rms_norm_composed"
    KERNELS: ClassVar[int] = 8
    FLOPS: ClassVar[int] = 4  # of a value
    # How often values are read and written in fp32, and how often in their own type: widen, square, average, scale,
    # narrow, times weight.
    FP32_READ: ClassVar[int] = 4
    FP32_WRITTEN: ClassVar[int] = 3
    OWN_TYPE: ClassVar[int] = 2
    WEIGHT_FP32: ClassVar[int] = 0  # how often the weight is written in fp32 and read again

    def cost(self) -> Cost:
        elements, width, weight = self.rows * self.cols, BYTES[self.dtype], self.cols
        own, turned = elements * self.OWN_TYPE * width, weight * self.WEIGHT_FP32 * FP32
        read = elements * self.FP32_READ * FP32 + own + weight * width + turned
        return Cost(self.FLOPS * elements, read, elements * self.FP32_WRITTEN * FP32 + own + turned)
