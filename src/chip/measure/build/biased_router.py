"""Sigmoid, a bias, the choice of groups and of experts. `torch`: as DeepSeek-V3 spells it; `vllm`: one kernel, as vLLM
calls it (from an environment that has vLLM)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, Unsupported, normal
from chip.measure.build.grouped_router import KEPT, drawn
from chip.ops.biased_router import BiasedRouter

TOLD = 2  # experts of a group whose scores tell how good it is


def implementations(op: BiasedRouter, device_type: str) -> tuple[str, ...]:
    return ("torch",) if device_type == "cpu" else ("torch", "vllm")


def build(op: BiasedRouter, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x, weight = drawn(op, device, generator)
    bias = normal((op.experts,), "fp32", device, generator)
    groups, kept = op.groups, max(1, op.groups // KEPT)
    if implementation == "vllm":
        try:
            from vllm.model_executor.layers.fused_moe.router.grouped_topk_router import grouped_topk
        except ImportError as e:
            raise Unsupported(f"grouped routing is part of vLLM, which is not installed here ({e})") from None
        return lambda: grouped_topk(x, F.linear(x, weight), op.top_k, True, groups, kept, "sigmoid", 1.0, bias)

    def call() -> object:
        scores = F.linear(x, weight).float().sigmoid()
        biased = (scores + bias).view(op.tokens, groups, -1)
        best = biased.topk(min(TOLD, biased.shape[-1]), -1).values.sum(-1).topk(kept, -1, sorted=False).indices
        mask = torch.zeros(op.tokens, groups, device=device).scatter_(1, best, 1).bool()
        chosen = biased.masked_fill(~mask.unsqueeze(-1), 0.0).flatten(1).topk(op.top_k, -1, sorted=False).indices
        weights = scores.gather(1, chosen)
        return weights / weights.sum(-1, keepdim=True), chosen

    return call
