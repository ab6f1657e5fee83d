"""Router of a mixture of experts: scores of every expert (a small dense layer), softmax and the choice of top_k."""

from __future__ import annotations

from math import log2
from typing import ClassVar

from chip.dtypes import BYTES
from chip.records import dataclass
from chip.types import ChipError, Cost, Op

PICK_BYTES = 8  # an expert's index and weight, 32 bits each


@dataclass(frozen=True, slots=True)
class MoeRouter(Op):
    tokens: int
    hidden: int
    experts: int
    top_k: int
    dtype: str = "bf16"

    kind: ClassVar[str] = "moe_router"
    GROWS: ClassVar[tuple[str, ...]] = ("tokens",)

    def check(self) -> None:
        if self.top_k > self.experts:
            raise ChipError(f"moe_router: top_k {self.top_k} is more than experts {self.experts}")

    def cost(self) -> Cost:
        width = BYTES[self.dtype]
        scores = self.tokens * self.experts
        return Cost(
            2 * scores * self.hidden + 5 * scores,
            (self.tokens + self.experts) * self.hidden * width,
            self.tokens * self.top_k * PICK_BYTES,
        )

    @property
    def compute(self) -> str:
        return "matmul_" + self.dtype

    @property
    def counted_flops(self) -> float:
        return 2 * self.tokens * self.experts * self.hidden

    def place(self) -> tuple[float, ...]:
        whole = self.experts & (self.experts - 1) == 0  # a power of two: choosing is one kernel then
        return log2(self.tokens) / 2, log2(self.experts), log2(self.hidden) / 2, log2(self.top_k) / 2, 3.0 * whole
