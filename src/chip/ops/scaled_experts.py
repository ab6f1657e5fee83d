"""Expert layers whose weights and inputs are quantised (fp8, int8): grouped products with scales, the inputs of both
products rounded by kernels of their own. Scales as in `scaled_linear`."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES, OUT_BYTES
from chip.ops.moe_experts import MoeExperts
from chip.ops.scaled_linear import SCALE_BYTES
from chip.records import dataclass
from chip.types import Cost


@dataclass(frozen=True, slots=True)
class ScaledExperts(MoeExperts):
    dtype: str = "fp8"
    block_n: int = 0
    block_k: int = 0
    group: int = 0
    per_tensor: bool = False

    kind: ClassVar[str] = "scaled_experts"

    def cost(self) -> Cost:
        """The products, the activation between them, and both inputs rounded."""
        rounded = self.tokens * self.hidden + self.pairs * self.intermediate
        quantise = Cost(0, rounded * OUT_BYTES[self.dtype], rounded * BYTES[self.dtype])
        return MoeExperts.cost(self) + quantise + Cost(0, self.experts_read * SCALE_BYTES * self.expert_scales, 0)

    @property
    def expert_scales(self) -> int:
        """Scales of one expert's matrices."""
        up = self._scales(self.intermediate, self.hidden)
        return (2 if self.gated else 1) * up + self._scales(self.hidden, self.intermediate)

    def _scales(self, n: int, k: int) -> int:
        return -(-n // (self.block_n or n)) * -(-k // (self.block_k or k))

    def varies(self) -> float:
        """Few shapes were measured: one draw tells more than none."""
        return 0.0

    def kernel_of(self, implementation: str) -> str:
        return implementation + (".block" if self.block_k else "")
