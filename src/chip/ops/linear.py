"""Products of matrices: dense layers, and stacks of products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log2
from typing import Any, ClassVar

from chip.dtypes import BYTES, OUT_BYTES
from chip.ops import BaseTime, GrowingBase, blend
from chip.types import Cost, MatrixProduct

TILE = 64  # rows and columns that a GEMM kernel computes at least
ALIGNED = 8  # elements: other widths take other kernels, several times slower
RAMP_K = 4096  # k from which on a kernel's pipeline is full


@dataclass(frozen=True, slots=True)
class GemmBase(GrowingBase):
    """Whole tiles on as many SMs as tiles and splits of k can fill, or all bytes at the memory's rate."""

    sharp: float = 2.9
    fill: float = 0.95  # how far few tiles leave SMs idle: 1 where an SM without a tile adds nothing
    split_k: float = 310.0  # values of k that one part of a split product takes
    ramp_s: float = 4.7e-6  # what filling and draining the pipeline takes where k is long
    ROWS: ClassVar[int] = TILE  # of the least tile

    def fixed(self, op: Any) -> tuple[int, ...]:
        return op.n, op.k

    def amount(self, op: Any) -> int:
        return int(op.m)

    def of_fixed(self, n: int, k: int) -> Callable[[int, float], float]:
        """For any rows of a weight, and bytes that they move."""
        columns = -(-n // TILE)
        splits, sms, tile_flops = max(1.0, k / self.split_k), self.sm_count, 2 * self.ROWS * TILE * columns * k
        floor_s, ramp_s = self.floor_s, self.ramp_s * (1 - exp(-k / RAMP_K))
        flop_per_s, bytes_per_s, fill, sharp = self.flop_per_s, self.bytes_per_s, self.fill, self.sharp
        least = self.ROWS

        def seconds(m: int, moved: float) -> float:
            rows = -(-m // least)
            arithmetic_s, filled = rows * tile_flops / flop_per_s, rows * columns / 4 * splits / sms
            if filled < 1:
                arithmetic_s /= filled**fill
            return floor_s + blend(arithmetic_s, moved / bytes_per_s, sharp) + ramp_s

        return seconds


@dataclass(frozen=True, slots=True)
class Linear(MatrixProduct):
    """Dense layer y = x W^T (+ b): x is m x k, W is n x k. The weight may be stored narrower than it is multiplied."""

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    weight_dtype: str = ""  # empty: as dtype
    bias: bool = False

    kind: ClassVar[str] = "linear"
    BY_FORMAT: ClassVar[bool] = True
    LEDGER: ClassVar[str] = "linear"

    def cost(self) -> Cost:
        m, n, k = self.m, self.n, self.k
        width = OUT_BYTES[self.dtype]
        read = m * k * BYTES[self.dtype] + n * k * BYTES[self.weight_dtype or self.dtype]
        if self.bias:
            return Cost(2 * m * n * k + m * n, read + n * width, m * n * width)
        return Cost(2 * m * n * k, read, m * n * width)

    @property
    def counted_flops(self) -> float:
        return 2 * self.m * self.n * self.k

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return GemmBase

    def place(self) -> tuple[float, ...]:
        return log2(self.m) / 2, log2(self.n), log2(self.k)

    def like_measured(self) -> Linear | None:
        """Widths that are not aligned take other kernels; a bias is added on the way out, at no cost."""
        if self.n % ALIGNED or self.k % ALIGNED or self.weight_dtype not in ("", self.dtype):
            return None
        return Linear(self.m, self.n, self.k, self.dtype) if self.bias or self.weight_dtype else self


class BmmBase(GemmBase):
    """As one product with the columns of all of them."""

    __slots__ = ()

    def fixed(self, op: Any) -> tuple[int, ...]:
        return op.columns, op.k


@dataclass(frozen=True, slots=True)
class Bmm(MatrixProduct):
    """Batched matrix product: `batch` independent m x k by k x n."""

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
