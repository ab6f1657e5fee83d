"""Collectives between GPUs: a tensor of rows and columns over so many ranks. The size that counts is that of the whole
tensor: what each GPU holds before an all-reduce or a reduce-scatter, and after an all-gather."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chip.dtypes import BYTES
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

    @property
    def summed(self) -> float:
        """FLOPs of one GPU where the ranks' tensors are added up on the way."""
        return self.rows * self.cols * (self.ranks - 1) / self.ranks


class AllReduce(Collective):
    """Sum of a tensor over `ranks` GPUs, left on each of them (ring: 2 (r - 1) / r of the tensor over every link)."""

    __slots__ = ()
    kind: ClassVar[str] = "all_reduce"

    def cost(self) -> Cost:
        return Cost(self.summed, self.tensor_bytes, self.tensor_bytes)

    @property
    def bytes_over_link(self) -> float:
        return 2 * (self.ranks - 1) / self.ranks * self.tensor_bytes

    @property
    def hops(self) -> int:
        return 2 * (self.ranks - 1)


class AllGather(Collective):
    """Parts of a tensor that `ranks` GPUs hold, put together on each: the first half of vLLM's exchange of tokens
    between GPUs that hold different experts."""

    __slots__ = ()
    kind: ClassVar[str] = "all_gather"

    def cost(self) -> Cost:
        return Cost(0, self.tensor_bytes / self.ranks, self.tensor_bytes)


class ReduceScatter(Collective):
    """Sum of a tensor over `ranks` GPUs, each keeping its part: the second half of vLLM's exchange of tokens between
    GPUs that hold different experts."""

    __slots__ = ()
    kind: ClassVar[str] = "reduce_scatter"

    def cost(self) -> Cost:
        return Cost(self.summed, self.tensor_bytes, self.tensor_bytes / self.ranks)
