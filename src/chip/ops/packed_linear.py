"""Dense layer of a 16-bit input and narrow weights (W4A16, W8A16, fp8 weights on a GPU without fp8 products): x is m x
k, W is n x k, stored as `weight_dtype` with a 16-bit scale for each `group` of a row (0: the whole row) and, with
`zeros`, a zero point as wide as a weight. The kernel dequantises and multiplies in `dtype`."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.base_time import BaseTime
from chip.ops.linear import ALIGNED, GemmBase, Linear
from chip.records import dataclass, replace
from chip.types import Cost

SCALE_BYTES = 2
MARLIN, MACHETE = "marlin", "machete"


class MarlinBase(GemmBase):
    """Marlin multiplies 8 tokens at least."""

    __slots__ = ()
    ROWS: ClassVar[int] = 8


class MacheteBase(GemmBase):
    """Machete multiplies 16 tokens at least."""

    __slots__ = ()
    ROWS: ClassVar[int] = 16


@dataclass(frozen=True, slots=True)
class PackedLinear(Linear):
    weight_dtype: str = "int4"
    group: int = 0
    zeros: bool = False

    kind: ClassVar[str] = "packed_linear"

    def cost(self) -> Cost:
        plain = Linear.cost(self)
        scales = self.n * -(-self.k // (self.group or self.k))
        beside = SCALE_BYTES + (BYTES[self.weight_dtype] if self.zeros else 0)
        return plain + Cost(0, scales * beside, 0)

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return MacheteBase if kernel.startswith(MACHETE) else MarlinBase

    def kernel_of(self, implementation: str) -> str:
        """Marlin was measured with one kind of byte, and unpacks the other alike."""
        stored = "fp8" if implementation == MARLIN and self.weight_dtype == "int8" else self.weight_dtype
        return implementation if stored == "int4" else f"{implementation}.{stored}"

    def like_measured(self) -> PackedLinear | None:
        """Zero points are read beside the scales, at no cost that was seen."""
        if self.n % ALIGNED or self.k % ALIGNED:
            return None
        return replace(self, bias=False, zeros=False) if self.bias or self.zeros else self
