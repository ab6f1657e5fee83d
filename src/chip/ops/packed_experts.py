"""Expert layers with narrow weights and 16-bit inputs (W4A16, mxfp4): the grouped products dequantise inside. A scale
covers `group` weights of a row (0: the whole row); it has 16 bits, those of fp4 weights 8."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.moe_experts import MoeExperts
from chip.ops.packed_linear import SCALE_BYTES
from chip.records import dataclass
from chip.types import Cost


@dataclass(frozen=True, slots=True)
class PackedExperts(MoeExperts):
    weight_dtype: str = "int4"
    group: int = 0
    zeros: bool = False

    kind: ClassVar[str] = "packed_experts"

    def cost(self) -> Cost:
        scale = 1 if self.weight_dtype == "fp4" else SCALE_BYTES
        beside = scale + (BYTES[self.weight_dtype] if self.zeros else 0)
        return MoeExperts.cost(self) + Cost(0, self.experts_read * self.expert_scales * beside, 0)

    @property
    def expert_scales(self) -> int:
        """Scales of one expert's matrices."""
        up = self.intermediate * -(-self.hidden // (self.group or self.hidden))
        down = self.hidden * -(-self.intermediate // (self.group or self.intermediate))
        return (2 if self.gated else 1) * up + down

    def varies(self) -> float:
        """Few shapes were measured: one draw tells more than none."""
        return 0.0

    def kernel_of(self, implementation: str) -> str:
        return f"{implementation}.fp4" if self.weight_dtype == "fp4" else implementation

    def like_measured(self) -> PackedExperts | None:
        return self if self.gated else None
