"""Scores of all experts and the choice of top_k: `torch`, softmax in fp32 and topk; `vllm`, both in one kernel after
the product, as vLLM calls it (from an environment that has vLLM)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, Unsupported, normal
from chip.ops.moe_router import MoeRouter


def implementations(op: MoeRouter, device_type: str) -> tuple[str, ...]:
    return ("torch",) if device_type == "cpu" else ("torch", "vllm")


def build(op: MoeRouter, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x = normal((op.tokens, op.hidden), op.dtype, device, generator)
    weight = normal((op.experts, op.hidden), op.dtype, device, generator)
    if implementation == "vllm":
        return _vllm(op, x, weight)
    return lambda: torch.topk(torch.softmax(F.linear(x, weight), -1, dtype=torch.float32), op.top_k, -1)


def _vllm(op: MoeRouter, x: torch.Tensor, weight: torch.Tensor) -> Closure:
    try:
        from vllm.model_executor.layers.fused_moe import fused_topk
    except ImportError as e:
        raise Unsupported(f"fused routing is part of vLLM, which is not installed here ({e})") from None
    return lambda: fused_topk(x, F.linear(x, weight), op.top_k, renormalize=True)
