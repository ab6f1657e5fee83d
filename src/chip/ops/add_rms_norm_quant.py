"""Residual addition, RMS normalisation and rounding: one kernel, the result in `to`, with a dynamic scale for each
`group` of a row's values (0: for each row)."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.add_rms_norm import AddRmsNorm
from chip.ops.quantize import SCALE_BYTES
from chip.records import dataclass
from chip.types import Cost


@dataclass(frozen=True, slots=True)
class AddRmsNormQuant(AddRmsNorm):
    to: str = "fp8"
    group: int = 0

    kind: ClassVar[str] = "add_rms_norm_quant"

    @property
    def plain(self) -> AddRmsNorm:
        """The kernel without the rounding: a close stand-in where this one was not measured."""
        return AddRmsNorm(self.rows, self.cols, self.dtype)

    def kernel_of(self, implementation: str) -> str:
        """A scale for each group is another kernel: vLLM's own, which torch.compile does not make."""
        return f"{implementation}.group" if self.group else implementation

    def cost(self) -> Cost:
        plain = AddRmsNorm.cost(self)
        scales = self.rows * -(-self.cols // (self.group or self.cols))
        narrower = self.elements * (BYTES[self.dtype] - BYTES[self.to])
        written = plain.write_bytes - narrower + SCALE_BYTES * scales
        return Cost(plain.flops + 3 * self.elements, plain.read_bytes, written)
