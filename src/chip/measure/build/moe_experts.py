"""Expert layers over tokens routed uniformly at random: `torch`, the grouped products (F.grouped_mm) of tokens already
sorted by expert; `vllm`, all that vLLM's Triton experts launch for routed tokens, called as vLLM does (from an
environment that has vLLM). Those are what it takes for bf16 on Hopper; tile sizes are those tuned for the device and
shape where vLLM ships such, else its defaults."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, Unsupported, normal
from chip.ops.moe_experts import MoeExperts


def implementations(op: MoeExperts, device_type: str) -> tuple[str, ...]:
    return ("torch",) if device_type == "cpu" else ("torch", "vllm")


def build(op: MoeExperts, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    if implementation == "vllm":
        return _vllm(op, device, generator)
    x = normal((op.tokens * op.top_k, op.hidden), op.dtype, device, generator)
    up, down = (w.transpose(1, 2) for w in weights(op, device, generator))
    ends = torch.bincount(routing(op, device, generator).flatten(), minlength=op.experts).cumsum(0).to(torch.int32)

    return lambda: grouped(x, up, down, ends, op.gated)


def grouped(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, ends: torch.Tensor, gated: bool) -> torch.Tensor:
    """Of rows sorted by expert; `ends`: after which row each expert's end."""
    inner = F.grouped_mm(x, up, offs=ends)
    if gated:
        gate, value = inner.chunk(2, -1)
        inner = F.silu(gate) * value
    else:
        inner = F.silu(inner)
    return F.grouped_mm(inner, down, offs=ends)


def _vllm(op: MoeExperts, device: torch.device, generator: torch.Generator) -> Closure:
    try:
        from vllm.model_executor.layers.fused_moe import fused_experts
    except ImportError as e:
        raise Unsupported(f"fused experts are part of vLLM, which is not installed here ({e})") from None
    if not op.gated:
        raise Unsupported("only gated experts are called as vLLM calls them")
    x = normal((op.tokens, op.hidden), op.dtype, device, generator)
    up, down = weights(op, device, generator)
    chosen = routing(op, device, generator).to(torch.int32)
    shares = torch.rand(chosen.shape, device=device, generator=generator)
    return lambda: fused_experts(x, up, down, shares, chosen)


def weights(op: MoeExperts, device: torch.device, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Of up (gate first) and down, an expert after the other, as both engines keep them."""
    if op.weight_dtype not in ("", op.dtype):
        raise Unsupported(f"torch has no grouped product of {op.dtype} with {op.weight_dtype} weights")
    if not hasattr(F, "grouped_mm"):
        raise Unsupported("this torch has no F.grouped_mm")
    width = op.intermediate * (2 if op.gated else 1)
    up = normal((op.experts, width, op.hidden), op.dtype, device, generator, op.hidden**-0.5)
    return up, normal((op.experts, op.hidden, op.intermediate), op.dtype, device, generator, op.intermediate**-0.5)


def routing(op: MoeExperts, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    """top_k distinct experts for every token."""
    scores = torch.rand(op.tokens, op.experts, device=device, generator=generator)
    return scores.topk(op.top_k, -1).indices
