"""Router of a mixture of experts: scores of every expert (a small dense layer), softmax and the choice of top_k."""

from __future__ import annotations

from math import log2
from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.base_time import BaseTime
from chip.records import dataclass
from chip.types import ChipError, Cost, Op

PICK_BYTES = 8  # an expert's index and weight, 32 bits each


@dataclass(frozen=True, slots=True)
class RouterBase(BaseTime):
    """The product, then the choice, which takes longer where experts are no power of two."""

    column_s: float = 5e-10  # for each column of the product: few blocks share it
    choice_s: float = 2e-10  # for each token
    other_choice_s: float = 2e-9  # the same of any other number of experts

    def seconds(self, op: MoeRouter) -> float:
        flops, read, written = op.cost()
        choice_s = op.tokens * (self.choice_s if op.whole else self.other_choice_s)
        product_s = max(flops / self.flop_per_s, (read + written) / self.bytes_per_s)
        return self.floor_s + self.column_s * op.hidden + choice_s + product_s


@dataclass(frozen=True, slots=True)
class MoeRouter(Op):
    tokens: int
    hidden: int
    experts: int
    top_k: int
    dtype: str = "bf16"

    kind: ClassVar[str] = "moe_router"
    LEDGER: ClassVar[str] = "experts"

    def check(self) -> None:
        if self.top_k > self.experts:
            raise ChipError(f"{self.kind}: top_k {self.top_k} is more than experts {self.experts}")
        groups = getattr(self, "groups", 1)
        if self.experts % groups:
            raise ChipError(f"{self.kind}: experts {self.experts} are no multiple of groups {groups}")

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

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return RouterBase

    @property
    def whole(self) -> bool:
        """A power of two: choosing is one kernel then."""
        return self.experts & (self.experts - 1) == 0

    def place(self) -> tuple[float, ...]:
        return log2(self.tokens) / 2, log2(self.experts), log2(self.hidden) / 2, log2(self.top_k) / 2, 3.0 * self.whole
