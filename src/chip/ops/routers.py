"""Routers of a mixture of experts: the scores of every expert, a small dense layer, and the choice of a few."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops import BaseTime
from chip.types import ChipError, Cost, MatrixProduct

FP32, INDEX_BYTES = BYTES["fp32"], 8
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
class MoeRouter(MatrixProduct):
    """Router of a mixture of experts: scores of every expert (a small dense layer), softmax and the choice of top_k."""

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


@dataclass(frozen=True, slots=True)
class GroupedRouter(MoeRouter):
    """Router of DeepSeek-V2: the best groups of experts are chosen first, then experts within them."""

    groups: int = 1

    kind: ClassVar[str] = "grouped_router"
    KERNELS: ClassVar[int] = 8  # product, softmax in two, choice of groups, mask, choice of experts, two copies


@dataclass(frozen=True, slots=True)
class BiasedRouter(MoeRouter):
    """Router of DeepSeek-V3 and GLM-4.5: sigmoid instead of softmax, a learned bias, groups of experts; one kernel
    after the product."""

    groups: int = 1

    kind: ClassVar[str] = "biased_router"
    KERNELS: ClassVar[int] = 2


class MoeRouterComposed(MoeRouter):
    """Router of a mixture of experts as HF's modules spell it: scores, widened to fp32, softmax, the choice of top_k,
    their sum, divided by it, narrowed."""

    __slots__ = ()
    kind: ClassVar[str] = "moe_router_composed"
    KERNELS: ClassVar[int] = 7

    def cost(self) -> Cost:
        width = BYTES[self.dtype]
        scores, chosen = self.tokens * self.experts, self.tokens * self.top_k
        # widen, softmax, choose; sum, divide, narrow
        read = scores * (width + 2 * FP32) + chosen * 3 * FP32 + self.tokens * FP32
        written = scores * (width + 2 * FP32) + chosen * (FP32 + INDEX_BYTES + FP32 + width) + self.tokens * FP32
        return Cost(
            2 * scores * self.hidden + 5 * scores, (self.tokens + self.experts) * self.hidden * width + read, written
        )
