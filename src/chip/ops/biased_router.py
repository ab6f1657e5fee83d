"""Router of DeepSeek-V3 and GLM-4.5: sigmoid instead of softmax, a learned bias, groups of experts; one kernel after
the product."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.moe_router import MoeRouter
from chip.records import dataclass


@dataclass(frozen=True, slots=True)
class BiasedRouter(MoeRouter):
    groups: int = 1

    kind: ClassVar[str] = "biased_router"
    KERNELS: ClassVar[int] = 2
