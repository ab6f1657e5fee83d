"""Scores of all experts, softmax in fp32 and the top_k of each token, as HF's Mixtral and Qwen routers run it."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, normal
from chip.ops.moe_router import MoeRouter


def build(op: MoeRouter, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x = normal((op.tokens, op.hidden), op.dtype, device, generator)
    weight = normal((op.experts, op.hidden), op.dtype, device, generator)
    return lambda: torch.topk(torch.softmax(F.linear(x, weight), -1, dtype=torch.float32), op.top_k, -1)
