"""Expert layers as grouped products (F.grouped_mm) over tokens already sorted by expert, routed uniformly at random."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, Unsupported, normal
from chip.ops.moe_experts import MoeExperts


def build(op: MoeExperts, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    if op.weight_dtype not in ("", op.dtype):
        raise Unsupported(f"torch has no grouped product of {op.dtype} with {op.weight_dtype} weights")
    if not hasattr(F, "grouped_mm"):
        raise Unsupported("this torch has no F.grouped_mm")
    pairs = op.tokens * op.top_k
    x = normal((pairs, op.hidden), op.dtype, device, generator)
    up_width = op.intermediate * (2 if op.gated else 1)
    up = normal((op.experts, up_width, op.hidden), op.dtype, device, generator, op.hidden**-0.5).transpose(1, 2)
    down = normal((op.experts, op.hidden, op.intermediate), op.dtype, device, generator, op.intermediate**-0.5)
    down = down.transpose(1, 2)
    ends = _routing(op, device, generator)

    def call() -> object:
        inner = F.grouped_mm(x, up, offs=ends)
        if op.gated:
            gate, value = inner.chunk(2, -1)
            inner = F.silu(gate) * value
        else:
            inner = F.silu(inner)
        return F.grouped_mm(inner, down, offs=ends)

    return call


def _routing(op: MoeExperts, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """Where each expert's tokens end: top_k distinct experts for every token."""
    scores = torch.rand(op.tokens, op.experts, device=device, generator=generator)
    picked = scores.topk(op.top_k, -1).indices.flatten()
    return torch.bincount(picked, minlength=op.experts).cumsum(0).to(torch.int32)
