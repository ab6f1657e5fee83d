"""Batched matrix product: `batch` independent m x k by k x n."""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import ClassVar

from chip.dtypes import BYTES, OUT_BYTES
from chip.ops.base_time import BaseTime, bytes_over
from chip.ops.linear import TILE, GemmBase
from chip.records import dataclass
from chip.types import Cost, Op


class BmmBase(GemmBase):
    """As one product with the columns of all of them."""

    __slots__ = ()

    def seconds(self, op: Bmm) -> float:  # type: ignore[override]
        _, read, written = op.cost()
        return self._of(op.columns, op.k)(op.m, read + written)

    def over(self, make: Callable[..., Bmm]) -> Callable[..., float]:  # type: ignore[override]
        (fixed, each), one = bytes_over(make), make(1)
        m, seconds = one.m, self._of(one.columns, one.k)
        return lambda tokens: seconds(m * tokens, fixed + each * tokens)


@dataclass(frozen=True, slots=True)
class Bmm(Op):
    batch: int
    m: int
    n: int
    k: int
    dtype: str = "bf16"

    kind: ClassVar[str] = "bmm"
    TOKEN_AXIS: ClassVar[int] = 1
    LEDGER: ClassVar[str] = "linear"

    def cost(self) -> Cost:
        read = self.batch * self.k * (self.m + self.n) * BYTES[self.dtype]
        write = self.batch * self.m * self.n * OUT_BYTES[self.dtype]
        return Cost(2 * self.batch * self.m * self.n * self.k, read, write)

    @property
    def columns(self) -> int:
        """Of all products, each in whole tiles."""
        return self.batch * TILE * -(-self.n // TILE)

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return BmmBase

    def place(self) -> tuple[float, ...]:
        return log2(self.batch) / 2, log2(self.m) / 2, log2(self.n), log2(self.k)

    @property
    def compute(self) -> str:
        return "matmul_" + self.dtype

    @property
    def counted_flops(self) -> float:
        return self.cost().flops
