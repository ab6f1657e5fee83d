"""Rotary positions and the write to pages.

One pass over the merged projection, norms of heads included. A program takes one token and one key head with the
queries that share it; beyond a few thousand programs their number is what counts, not their bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any, ClassVar

from chip.dtypes import BYTES
from chip.ops.base_time import BaseTime, bytes_over
from chip.ops.elementwise import OverRows, RowBase
from chip.records import dataclass
from chip.types import Cost


class StoreBase(RowBase):
    """Rows are programs."""

    __slots__ = ()

    def seconds(self, op: Any) -> float:
        _, read, written = op.cost()
        return self._of(op.cols // op.kv_heads)(op.programs, read + written)

    def over(self, make: Callable[..., Any]) -> Callable[..., float]:
        (fixed, each), one = bytes_over(make), make(1)
        programs, seconds = one.programs, self._of(one.cols // one.kv_heads)
        return lambda tokens: seconds(programs * tokens, fixed + each * tokens)


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
    def programs(self) -> int:
        return self.rows * self.kv_heads

    @property
    def compute(self) -> str:
        return "matmul_fp32"

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return StoreBase

    def place(self) -> tuple[float, ...]:
        return log2(self.programs), log2(self.cols / self.kv_heads)
