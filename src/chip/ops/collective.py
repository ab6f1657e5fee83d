"""What collectives between GPUs share: a tensor of rows and columns over so many ranks. The size that counts is that of
the whole tensor: what each GPU holds before an all-reduce or a reduce-scatter, and after an all-gather."""

from __future__ import annotations

from chip.dtypes import BYTES
from chip.records import dataclass
from chip.types import Cost, Op


@dataclass(frozen=True, slots=True)
class Collective(Op):
    rows: int
    cols: int
    ranks: int
    dtype: str = "bf16"

    @property
    def tensor_bytes(self) -> float:
        return self.rows * self.cols * BYTES[self.dtype]

    def cost(self) -> Cost:
        """Of one GPU's memory; what sums does so on the way."""
        share = (self.ranks - 1) / self.ranks
        return Cost(self.rows * self.cols * share, self.tensor_bytes, self.tensor_bytes)

    @property
    def compute(self) -> str:
        return "matmul_fp32"
