"""Expert layers of a mixture of experts as grouped matrix products: up (and gate), activation, down.

Which experts are read depends on routing. With uniform routing `tokens` tokens touch
experts * (1 - (1 - top_k / experts) ^ tokens) of them on average: at batch 1 top_k, at large batch all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chip.dtypes import BYTES, OUT_BYTES
from chip.types import ChipError, Cost, Op


@dataclass(frozen=True, slots=True)
class MoeExperts(Op):
    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    gated: bool = True
    dtype: str = "bf16"
    weight_dtype: str = ""

    kind: ClassVar[str] = "moe_experts"

    def check(self) -> None:
        if self.top_k > self.experts:
            raise ChipError(f"moe_experts: top_k {self.top_k} is more than experts {self.experts}")

    @property
    def experts_read(self) -> float:
        return self.experts * (1 - (1 - self.top_k / self.experts) ** self.tokens)

    def cost(self) -> Cost:
        pairs = self.tokens * self.top_k
        matrices = 3 if self.gated else 2
        weight = matrices * self.hidden * self.intermediate
        width, out = BYTES[self.dtype], OUT_BYTES[self.dtype]
        inner = pairs * self.intermediate
        # up's input and output, activation's input and output, down's input and output
        read = pairs * self.hidden * width + (matrices - 1) * inner * out + inner * width
        write = (matrices - 1) * inner * out + inner * out + pairs * self.hidden * out
        return Cost(
            2 * pairs * weight,
            read + self.experts_read * weight * BYTES[self.weight_dtype or self.dtype],
            write,
        )

    @property
    def compute(self) -> str:
        return "matmul_" + self.dtype

    @property
    def counted_flops(self) -> float:
        return self.cost().flops
