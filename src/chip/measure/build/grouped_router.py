"""The choice of groups of experts, then of experts in them. `torch`: as DeepSeek-V2 spells it; `vllm`: the same under
torch.compile, as vLLM calls it (from an environment that has vLLM)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, Unsupported, normal
from chip.ops.grouped_router import GroupedRouter
from chip.ops.moe_router import MoeRouter

KEPT = 2  # one in so many groups stays


def implementations(op: GroupedRouter, device_type: str) -> tuple[str, ...]:
    return ("torch",) if device_type == "cpu" else ("torch", "vllm")


def drawn(op: MoeRouter, device: torch.device, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and the weights of the scores."""
    x = normal((op.tokens, op.hidden), op.dtype, device, generator)
    return x, normal((op.experts, op.hidden), op.dtype, device, generator)


def build(
    op: GroupedRouter, device: torch.device, generator: torch.Generator, implementation: str = "torch"
) -> Closure:
    x, weight = drawn(op, device, generator)
    groups, kept = op.groups, max(1, op.groups // KEPT)
    if implementation == "vllm":
        try:
            from vllm.model_executor.layers.fused_moe.router.grouped_topk_router import grouped_topk
        except ImportError as e:
            raise Unsupported(f"grouped routing is part of vLLM, which is not installed here ({e})") from None
        return lambda: grouped_topk(x, F.linear(x, weight), op.top_k, False, groups, kept)

    def call() -> object:
        scores = torch.softmax(F.linear(x, weight), -1, dtype=torch.float32)
        best = scores.view(op.tokens, groups, -1).max(-1).values.topk(kept, -1, sorted=False).indices
        mask = torch.zeros(op.tokens, groups, device=device).scatter_(1, best, 1).bool()
        hidden = ~mask.unsqueeze(-1).expand(-1, -1, op.experts // groups).reshape(op.tokens, -1)
        return scores.masked_fill(hidden, 0.0).topk(op.top_k, -1, sorted=False)

    return call
