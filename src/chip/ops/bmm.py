"""Batched matrix product: `batch` independent m x k by k x n."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES, OUT_BYTES
from chip.records import dataclass
from chip.types import Cost, Op


@dataclass(frozen=True, slots=True)
class Bmm(Op):
    batch: int
    m: int
    n: int
    k: int
    dtype: str = "bf16"

    kind: ClassVar[str] = "bmm"
    TOKEN_AXIS: ClassVar[int] = 1

    def cost(self) -> Cost:
        read = self.batch * self.k * (self.m + self.n) * BYTES[self.dtype]
        write = self.batch * self.m * self.n * OUT_BYTES[self.dtype]
        return Cost(2 * self.batch * self.m * self.n * self.k, read, write)

    @property
    def compute(self) -> str:
        return "matmul_" + self.dtype

    @property
    def counted_flops(self) -> float:
        return self.cost().flops
