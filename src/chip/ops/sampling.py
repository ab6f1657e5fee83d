"""Greedy choice of the next token: the largest of `cols` logits in each row."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.elementwise import OverRows
from chip.records import dataclass
from chip.types import Cost

INDEX_BYTES = 8


@dataclass(frozen=True, slots=True)
class Sampling(OverRows):
    rows: int
    cols: int
    dtype: str = "bf16"

    kind: ClassVar[str] = "sampling"
    LEDGER: ClassVar[str] = "sampling"
    # 256 values and more for each of 512 threads: a row is shared by several blocks
    EDGES: ClassVar[tuple[int, ...]] = (256 * 512 - 1,)

    def cost(self) -> Cost:
        elements = self.rows * self.cols
        return Cost(elements, elements * BYTES[self.dtype], self.rows * INDEX_BYTES)

    @property
    def compute(self) -> str:
        return "matmul_fp32"
