"""Dense layer of a 16-bit input and narrow weights (W4A16, W8A16, fp8 weights on a GPU without fp8 products): x is m x
k, W is n x k, stored as `weight_dtype` with a 16-bit scale for each `group` of a row (0: the whole row) and, with
`zeros`, a zero point as wide as a weight. The kernel dequantises and multiplies in `dtype`."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.linear import Linear
from chip.records import dataclass
from chip.types import Cost

SCALE_BYTES = 2


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
