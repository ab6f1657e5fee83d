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

    def cost(self) -> Cost:
        elements, width = self.rows * self.cols, BYTES[self.dtype]
        # widen, square, average, scale, narrow, times weight
        read = elements * (width + FP32 + FP32 + FP32 + FP32 + width) + self.cols * width
        written = elements * (FP32 + FP32 + FP32 + width + width)
        return Cost(4 * elements, read, written)
