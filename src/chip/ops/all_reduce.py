"""Sum of a tensor over `ranks` GPUs, left on each of them (ring: 2 (r - 1) / r of the tensor over every link)."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.collective import Collective


class AllReduce(Collective):
    __slots__ = ()
    kind: ClassVar[str] = "all_reduce"

    @property
    def bytes_over_link(self) -> float:
        return 2 * (self.ranks - 1) / self.ranks * self.tensor_bytes

    @property
    def hops(self) -> int:
        return 2 * (self.ranks - 1)
