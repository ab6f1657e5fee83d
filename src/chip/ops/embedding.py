"""Row gather from an embedding table: one row of `cols` values for each of `rows` tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chip.dtypes import BYTES
from chip.types import Cost, Op

INDEX_BYTES = 8


@dataclass(frozen=True, slots=True)
class Embedding(Op):
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
