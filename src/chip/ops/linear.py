"""Dense layer y = x W^T (+ b): x is m x k, W is n x k. The weight may be stored narrower than it is multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chip.dtypes import BYTES, OUT_BYTES
from chip.types import Cost, Op


@dataclass(frozen=True, slots=True)
class Linear(Op):
    m: int
    n: int
    k: int
    dtype: str = "bf16"
    weight_dtype: str = ""  # empty: as dtype
    bias: bool = False

    kind: ClassVar[str] = "linear"

    def cost(self) -> Cost:
        m, n, k = self.m, self.n, self.k
        width = OUT_BYTES[self.dtype]
        read = m * k * BYTES[self.dtype] + n * k * BYTES[self.weight_dtype or self.dtype]
        if self.bias:
            return Cost(2 * m * n * k + m * n, read + n * width, m * n * width)
        return Cost(2 * m * n * k, read, m * n * width)

    @property
    def compute(self) -> str:
        return "matmul_" + self.dtype

    @property
    def counted_flops(self) -> float:
        return 2 * self.m * self.n * self.k
