"""Experts as transformers' grouped_mm_experts_forward runs them: sort, gather, grouped products, weigh, undo, sum."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, normal
from chip.measure.build.moe_experts import routing, weights
from chip.ops.moe_experts_composed import MoeExpertsComposed


def build(
    op: MoeExpertsComposed, device: torch.device, generator: torch.Generator, implementation: str = "torch"
) -> Closure:
    x = normal((op.tokens, op.hidden), op.dtype, device, generator)
    up, down = (w.transpose(1, 2) for w in weights(op, device, generator))
    chosen = routing(op, device, generator)
    shares = normal(tuple(chosen.shape), op.dtype, device, generator).abs_()
    counted = torch.float32 if device.type == "cpu" else torch.int32  # what histc takes

    def call() -> object:
        experts, order = torch.sort(chosen.reshape(-1))
        rows = x[order // op.top_k]
        share = shares.reshape(-1)[order]
        counts = torch.histc(experts.to(counted), bins=op.experts, min=0, max=op.experts - 1)
        ends = counts.cumsum(0, dtype=torch.int32)
        elsewhere = (experts >= op.experts).unsqueeze(-1)
        experts.clamp_(max=op.experts - 1)
        rows.masked_fill_(elsewhere, 0.0)
        inner = F.grouped_mm(rows, up, offs=ends).masked_fill(elsewhere, 0.0)
        if op.gated:
            gate, value = inner.chunk(2, -1)
            inner = F.silu(gate) * value
        else:
            inner = F.silu(inner)
        out = F.grouped_mm(inner, down, offs=ends).masked_fill(elsewhere, 0.0) * share.unsqueeze(-1)
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=device)
        return out[place].view(op.tokens, op.top_k, op.hidden).sum(1)

    return call
