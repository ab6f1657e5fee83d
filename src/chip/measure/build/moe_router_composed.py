"""A router as HF's Mixtral and Qwen modules spell it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, normal
from chip.ops.moe_router_composed import MoeRouterComposed


def build(
    op: MoeRouterComposed, device: torch.device, generator: torch.Generator, implementation: str = "torch"
) -> Closure:
    x = normal((op.tokens, op.hidden), op.dtype, device, generator)
    weight = normal((op.experts, op.hidden), op.dtype, device, generator)

    def call() -> object:
        scores = F.linear(x, weight)
        shares, chosen = torch.topk(F.softmax(scores, -1, dtype=torch.float32), op.top_k, -1)
        shares /= shares.sum(-1, keepdim=True)
        return shares.to(scores.dtype), chosen

    return call
