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

    @property
    def pairs(self) -> int:
        return self.tokens * self.top_k

    def cost(self) -> Cost:
        """The products, and the activation between them."""
        inner = self.pairs * self.intermediate * OUT_BYTES[self.dtype]
        return self.products() + Cost(0, (2 if self.gated else 1) * inner, inner)

    def products(self) -> Cost:
        """Of up (and gate) and down alone, each with its inputs, outputs and the experts that are read."""
        matrices = 3 if self.gated else 2
        weight = matrices * self.hidden * self.intermediate
        width, out = BYTES[self.dtype], OUT_BYTES[self.dtype]
        wide, inner = self.pairs * self.hidden, self.pairs * self.intermediate
        return Cost(
            2 * self.pairs * weight,
            (wide + inner) * width + self.experts_read * weight * BYTES[self.weight_dtype or self.dtype],
            ((matrices - 1) * inner + wide) * out,
        )

    def passes(self) -> Cost:
        """What runs beside the two products where they are kernels of their own: the activation, and each token's
        experts added up."""
        inner, wide, width = self.pairs * self.intermediate, self.pairs * self.hidden, OUT_BYTES[self.dtype]
        read = (2 if self.gated else 1) * inner + wide
        return Cost(0, read * width, (inner + self.tokens * self.hidden) * width)

    @property
    def compute(self) -> str:
        return "matmul_" + self.dtype

    @property
    def counted_flops(self) -> float:
        return self.cost().flops
