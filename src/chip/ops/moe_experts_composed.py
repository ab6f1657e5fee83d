"""Expert layers as HF transformers runs them on a GPU: token-expert pairs sorted by expert and gathered, two grouped
products, weighted and put back in order, 21 kernels as of transformers 5.17 (five of them mask the pairs of experts
that live elsewhere, which later versions do only where there are such).
"""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.moe_experts import MoeExperts
from chip.types import Cost


class MoeExpertsComposed(MoeExperts):
    __slots__ = ()
    kind: ClassVar[str] = "moe_experts_composed"
    KERNELS: ClassVar[int] = 21

    def cost(self) -> Cost:
        return self.products() + self.passes()

    def passes(self) -> Cost:
        """Sorting and counting the pairs is launches, hardly bytes."""
        inner, wide, width = self.pairs * self.intermediate, self.pairs * self.hidden, BYTES[self.dtype]
        up = inner * (2 if self.gated else 1)
        # gather and mask; mask, activation (and the gate's product); mask, weigh, put in order; sum
        read = 2 * wide + up + (3 if self.gated else 1) * inner + 3 * wide + wide
        written = 2 * wide + up + (2 if self.gated else 1) * inner + 3 * wide + self.tokens * self.hidden
        return Cost(0, read * width, written * width)

    @property
    def tile_rows(self) -> int:
        """Of torch's grouped product, by the mean of an expert."""
        return 64 if self.pairs // self.experts <= 128 else 128
