"""Router of a mixture of experts as HF's modules spell it: scores, widened to fp32, softmax, the choice of top_k, their
sum, divided by it, narrowed."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.moe_router import MoeRouter
from chip.types import Cost

FP32, INDEX = BYTES["fp32"], 8


class MoeRouterComposed(MoeRouter):
    __slots__ = ()
    kind: ClassVar[str] = "moe_router_composed"
    KERNELS: ClassVar[int] = 7

    def cost(self) -> Cost:
        width = BYTES[self.dtype]
        scores, chosen = self.tokens * self.experts, self.tokens * self.top_k
        # widen, softmax, choose; sum, divide, narrow
        read = scores * (width + 2 * FP32) + chosen * 3 * FP32 + self.tokens * FP32
        written = scores * (width + 2 * FP32) + chosen * (FP32 + INDEX + FP32 + width) + self.tokens * FP32
        return Cost(
            2 * scores * self.hidden + 5 * scores, (self.tokens + self.experts) * self.hidden * width + read, written
        )
