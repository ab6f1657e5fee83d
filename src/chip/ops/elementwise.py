"""What operators over a rows x cols tensor share: they run on the vector units and move each element a few times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chip.dtypes import BYTES
from chip.types import Cost, Op


@dataclass(frozen=True, slots=True)
class Elementwise(Op):
    rows: int
    cols: int
    dtype: str = "bf16"

    FLOPS: ClassVar[int] = 1  # per element of the result
    READS: ClassVar[int] = 1  # tensors of rows x cols read
    WRITES: ClassVar[int] = 1
    VECTORS: ClassVar[int] = 0  # tensors of cols read (weights and biases of norms)

    def cost(self) -> Cost:
        elements = self.rows * self.cols
        width = BYTES[self.dtype]
        return Cost(
            self.FLOPS * elements,
            (self.READS * elements + self.VECTORS * self.cols) * width,
            self.WRITES * elements * width,
        )

    @property
    def elements(self) -> int:
        return self.rows * self.cols

    @property
    def compute(self) -> str:
        return "matmul_fp32"
