"""Rotary positions and the write to the paged KV cache in one pass."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.elementwise import OverRows
from chip.records import dataclass
from chip.types import Cost


@dataclass(frozen=True, slots=True)
class RopeStore(OverRows):
    rows: int  # tokens
    heads: int  # of queries
    kv_heads: int
    head_dim: int
    dtype: str = "bf16"

    kind: ClassVar[str] = "rope_store"

    def cost(self) -> Cost:
        turned = self.rows * (self.heads + self.kv_heads) * self.head_dim
        moved = self.rows * self.cols * BYTES[self.dtype]
        table = self.rows * self.head_dim * BYTES["fp32"]  # a cosine and a sine for each pair
        return Cost(3 * turned, moved + table, moved)

    @property
    def cols(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def compute(self) -> str:
        return "matmul_fp32"
