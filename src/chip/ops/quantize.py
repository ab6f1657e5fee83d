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


@dataclass(frozen=True, slots=True)
class WithRounding(Elementwise):
    """A norm or an activation (`PLAIN`, the base after this one) whose kernel rounds its result, too."""

    to: str = "fp8"
    group: int = 0

    PLAIN: ClassVar[type[Elementwise]]

    @property
    def plain(self) -> Elementwise:
        """The kernel without the rounding: a close stand-in where this one was not measured."""
        return self.PLAIN(self.rows, self.cols, self.dtype)

    def kernel_of(self, implementation: str) -> str:
        """A scale for each group is another kernel: vLLM's own, which torch.compile does not make."""
        return f"{implementation}.group" if self.group else implementation

    def cost(self) -> Cost:
        plain = Elementwise.cost(self)
        scales = self.rows * -(-self.cols // (self.group or self.cols))
        narrower = self.elements * (BYTES[self.dtype] - BYTES[self.to])
        written = plain.write_bytes - narrower + SCALE_BYTES * scales
        return Cost(plain.flops + 3 * self.elements, plain.read_bytes, written)
