"""Rotary position embedding of queries and keys: each pair of values is rotated by its position's angle."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.elementwise import OverRows
from chip.records import dataclass
from chip.types import Cost


@dataclass(frozen=True, slots=True)
class Rope(OverRows):
    rows: int  # tokens
    heads: int  # query and key heads together
    head_dim: int  # the rotated part of each head
    dtype: str = "bf16"

    kind: ClassVar[str] = "rope"

    def cost(self) -> Cost:
        elements = self.rows * self.heads * self.head_dim
        width = BYTES[self.dtype]
        # 4 products and 2 sums for each pair; one cosine and one sine for each pair of a token, shared by its heads
        return Cost(3 * elements, (elements + self.rows * self.head_dim) * width, elements * width)

    @property
    def cols(self) -> int:
        return self.heads * self.head_dim

    @property
    def compute(self) -> str:
        return "matmul_fp32"
