"""Sum of a tensor over `ranks` GPUs, each keeping its part: the second half of vLLM's exchange of tokens between
GPUs that hold different experts."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.collective import Collective
from chip.types import Cost


class ReduceScatter(Collective):
    __slots__ = ()
    kind: ClassVar[str] = "reduce_scatter"

    def cost(self) -> Cost:
        kept = self.tensor_bytes / self.ranks
        return Cost(self.rows * self.cols * (self.ranks - 1) / self.ranks, self.tensor_bytes, kept)
