"""Parts of a tensor that `ranks` GPUs hold, put together on each: the first half of vLLM's exchange of tokens between
GPUs that hold different experts."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.collective import Collective
from chip.types import Cost


class AllGather(Collective):
    __slots__ = ()
    kind: ClassVar[str] = "all_gather"

    def cost(self) -> Cost:
        return Cost(0, self.tensor_bytes / self.ranks, self.tensor_bytes)
