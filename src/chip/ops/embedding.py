"""Row gather from an embedding table: one row of `cols` values for each of `rows` tokens."""

from __future__ import annotations

from math import log2
from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.elementwise import OverRows
from chip.records import dataclass
from chip.types import Cost

INDEX_BYTES = 8
FEW_ROWS = 16  # that torch gathers by a kernel which walks over them


@dataclass(frozen=True, slots=True)
class Embedding(OverRows):
    rows: int
    cols: int
    dtype: str = "bf16"

    kind: ClassVar[str] = "embedding"

    def cost(self) -> Cost:
        moved = self.rows * self.cols * BYTES[self.dtype]
        return Cost(0, moved + self.rows * INDEX_BYTES, moved)

    @property
    def compute(self) -> str:
        return "matmul_fp32"

    def place(self) -> tuple[float, ...]:
        return log2(self.rows), log2(self.cols), 3.0 * (self.rows > FEW_ROWS)
