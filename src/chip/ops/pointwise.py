"""Any other kernel, known by the elements it reads and writes: casts, concatenations, reductions of a traced model."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.records import dataclass
from chip.types import Cost, Op


@dataclass(frozen=True, slots=True)
class Pointwise(Op):
    reads: int
    writes: int
    dtype: str = "bf16"

    kind: ClassVar[str] = "pointwise"

    def cost(self) -> Cost:
        width = BYTES[self.dtype]
        return Cost(max(self.reads, self.writes), self.reads * width, self.writes * width)

    @property
    def compute(self) -> str:
        return "matmul_fp32"
