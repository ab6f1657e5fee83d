"""Sum of a tensor over `ranks` GPUs, left on each of them (ring: 2 (r - 1) / r of the tensor over every link)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chip.dtypes import BYTES
from chip.types import Cost, Op


@dataclass(frozen=True, slots=True)
class AllReduce(Op):
    rows: int
    cols: int
    ranks: int
    dtype: str = "bf16"

    kind: ClassVar[str] = "all_reduce"

    def cost(self) -> Cost:
        elements = self.rows * self.cols
        moved = elements * BYTES[self.dtype]
        return Cost(elements * (self.ranks - 1) / self.ranks, moved, moved)

    @property
    def bytes_over_link(self) -> float:
        return 2 * (self.ranks - 1) / self.ranks * self.rows * self.cols * BYTES[self.dtype]

    @property
    def hops(self) -> int:
        return 2 * (self.ranks - 1)

    @property
    def compute(self) -> str:
        return "matmul_fp32"
