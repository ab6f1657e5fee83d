"""Rounding of a layer's input: rows x cols values of 16 bits to `to`, with a scale for each `group` of a row's values
(0: for each row; with `per_tensor` one for all). A dynamic scale is the largest magnitude it covers, found in the same
kernel; a `static` one is read."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.elementwise import Elementwise
from chip.records import dataclass
from chip.types import Cost

SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Quantize(Elementwise):
    to: str = "fp8"
    group: int = 0
    per_tensor: bool = False
    static: bool = False

    kind: ClassVar[str] = "quantize"
    FLOPS: ClassVar[int] = 3  # magnitude, largest, scaled

    def cost(self) -> Cost:
        scales = 1 if self.per_tensor else self.rows * -(-self.cols // (self.group or self.cols))
        # a dynamic scale of the whole tensor is known only after all of it was read once
        passes = 2 if self.per_tensor and not self.static else 1
        read, written = passes * self.elements * BYTES[self.dtype], self.elements * BYTES[self.to]
        if self.static:
            return Cost(self.FLOPS * self.elements, read + SCALE_BYTES * scales, written)
        return Cost(self.FLOPS * self.elements, read, written + SCALE_BYTES * scales)

    def kernel_of(self, implementation: str) -> str:
        if self.to != "fp8":
            return f"{implementation}.{self.to}"
        return implementation + (".group" if self.group else ".static" if self.static else "")
