"""Routers: the scores of all experts and the choice of a few, as torch and as vLLM run them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.lab.measure.build import Closure, Draw, builds
from chip.lab.measure.vllm_ops import function
from chip.ops.routers import BiasedRouter, GroupedRouter, MoeRouter, MoeRouterComposed

FUSED_MOE = "vllm.model_executor.layers.fused_moe"
GROUPS_A_CHOICE = 2  # of so many groups one is chosen
JUDGED = 2  # experts of a group by whose scores it is chosen


def inputs(op: MoeRouter, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and the weights of the scores."""
    x = draw.normal((op.tokens, op.hidden), op.dtype)
    return x, draw.normal((op.experts, op.hidden), op.dtype)


@builds("moe_router", gpu=("torch", "vllm"))
def moe_router(op: MoeRouter, draw: Draw, implementation: str) -> Closure:
    """Scores of all experts and the choice of top_k: `torch`, softmax in fp32 and topk; `vllm`, both in one kernel
    after the product."""
    x, weight = inputs(op, draw)
    if implementation == "vllm":
        fused_topk = function(FUSED_MOE, "fused_topk", "fused routing")
        return lambda: fused_topk(x, F.linear(x, weight), op.top_k, renormalize=True)
    return lambda: torch.topk(torch.softmax(F.linear(x, weight), -1, dtype=torch.float32), op.top_k, -1)


@builds("moe_router_composed")
def moe_router_composed(op: MoeRouterComposed, draw: Draw, implementation: str) -> Closure:
    """A router as HF's Mixtral and Qwen modules spell it."""
    x, weight = inputs(op, draw)

    def call() -> object:
        scores = F.linear(x, weight)
        shares, chosen = torch.topk(F.softmax(scores, -1, dtype=torch.float32), op.top_k, -1)
        shares /= shares.sum(-1, keepdim=True)
        return shares.to(scores.dtype), chosen

    return call


@builds("grouped_router", gpu=("torch", "vllm"))
def grouped_router(op: GroupedRouter, draw: Draw, implementation: str) -> Closure:
    """The choice of groups of experts, then of experts in them. `torch`: as DeepSeek-V2 spells it; `vllm`: the same
    under torch.compile."""
    x, weight = inputs(op, draw)
    groups, best_groups = op.groups, max(1, op.groups // GROUPS_A_CHOICE)
    if implementation == "vllm":
        grouped_topk = function(f"{FUSED_MOE}.router.grouped_topk_router", "grouped_topk", "grouped routing")
        return lambda: grouped_topk(x, F.linear(x, weight), op.top_k, False, groups, best_groups)

    def call() -> object:
        scores = torch.softmax(F.linear(x, weight), -1, dtype=torch.float32)
        best = scores.view(op.tokens, groups, -1).max(-1).values.topk(best_groups, -1, sorted=False).indices
        mask = torch.zeros(op.tokens, groups, device=draw.device).scatter_(1, best, 1).bool()
        hidden = ~mask.unsqueeze(-1).expand(-1, -1, op.experts // groups).reshape(op.tokens, -1)
        return scores.masked_fill(hidden, 0.0).topk(op.top_k, -1, sorted=False)

    return call


@builds("biased_router", gpu=("torch", "vllm"))
def biased_router(op: BiasedRouter, draw: Draw, implementation: str) -> Closure:
    """Sigmoid, a bias, the choice of groups and of experts. `torch`: as DeepSeek-V3 spells it; `vllm`: one kernel."""
    x, weight = inputs(op, draw)
    bias = draw.normal((op.experts,), "fp32")
    groups, best_groups = op.groups, max(1, op.groups // GROUPS_A_CHOICE)
    if implementation == "vllm":
        grouped_topk = function(f"{FUSED_MOE}.router.grouped_topk_router", "grouped_topk", "grouped routing")
        return lambda: grouped_topk(x, F.linear(x, weight), op.top_k, True, groups, best_groups, "sigmoid", 1.0, bias)

    def call() -> object:
        scores = F.linear(x, weight).float().sigmoid()
        biased = (scores + bias).view(op.tokens, groups, -1)
        best = biased.topk(min(JUDGED, biased.shape[-1]), -1).values.sum(-1).topk(best_groups, -1, sorted=False).indices
        mask = torch.zeros(op.tokens, groups, device=draw.device).scatter_(1, best, 1).bool()
        chosen = biased.masked_fill(~mask.unsqueeze(-1), 0.0).flatten(1).topk(op.top_k, -1, sorted=False).indices
        weights = scores.gather(1, chosen)
        return weights / weights.sum(-1, keepdim=True), chosen

    return call
