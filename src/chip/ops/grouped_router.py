"""Router of DeepSeek-V2: the best groups of experts are chosen first, then experts within them."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.moe_router import MoeRouter
from chip.records import dataclass


@dataclass(frozen=True, slots=True)
class GroupedRouter(MoeRouter):
    groups: int = 1

    kind: ClassVar[str] = "grouped_router"
    KERNELS: ClassVar[int] = 8  # product, softmax in two, choice of groups, mask, choice of experts, two copies
