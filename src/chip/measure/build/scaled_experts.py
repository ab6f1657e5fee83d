"""fp8 expert layers over tokens routed uniformly at random: `vllm`, all that its Triton experts launch, called as vLLM
does (from an environment that has vLLM), which is what it takes on Hopper, for blocks and for scales by tensor;
`torch`, weights widened, then grouped products."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, Unsupported, normal
from chip.measure.build.moe_experts import grouped, routing
from chip.measure.vllm_ops import module, scales
from chip.ops.moe_experts import MoeExperts
from chip.ops.scaled_experts import ScaledExperts

FUSED_MOE = "vllm.model_executor.layers.fused_moe"


def implementations(op: ScaledExperts, device_type: str) -> tuple[str, ...]:
    return ("torch",) if device_type == "cpu" else ("vllm", "torch")


def build(op: ScaledExperts, device: torch.device, generator: torch.Generator, implementation: str = "vllm") -> Closure:
    if op.dtype != "fp8" or op.weight_dtype not in ("", "fp8") or not op.gated:
        raise Unsupported("only gated experts with fp8 weights and inputs are called as vLLM calls them")
    if implementation == "torch":
        return widened(op, device, generator)
    fused, configs = (module(f"{FUSED_MOE}{part}", "fused experts") for part in ("", ".config"))
    x = normal((op.tokens, op.hidden), "bf16", device, generator)
    shapes = ((2 * op.intermediate, op.hidden), (op.hidden, op.intermediate))
    up, down = (normal((op.experts, *shape), "fp8", device, generator) for shape in shapes)
    up_scales, down_scales = (_scales(op, n, k, device, generator) for n, k in shapes)
    quantised = configs.fp8_w8a8_moe_quant_config(
        w1_scale=up_scales,
        w2_scale=down_scales,
        per_act_token_quant=not op.per_tensor and not op.block_k,
        per_out_ch_quant=op.block_n == 1,
        block_shape=[op.block_n, op.block_k] if op.block_k else None,
    )
    chosen = routing(op, device, generator).to(torch.int32)
    shares = torch.rand(chosen.shape, device=device, generator=generator)
    return lambda: fused.fused_experts(x, up, down, shares, chosen, quant_config=quantised)


def _scales(op: ScaledExperts, n: int, k: int, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    if op.block_k:
        shape: tuple[int, ...] = (op.experts, -(-n // op.block_n), -(-k // op.block_k))
    else:
        shape = (op.experts, n, 1) if op.block_n else (op.experts,)
    return scales(shape, torch.float32, device, generator)


def widened(op: MoeExperts, device: torch.device, generator: torch.Generator) -> Closure:
    """fp8 weights with a scale for each expert, widened to 16 bits before the grouped products."""
    shapes = ((2 * op.intermediate, op.hidden), (op.hidden, op.intermediate))
    narrow = [normal((op.experts, *shape), "fp8", device, generator) for shape in shapes]
    by_expert = scales((op.experts, 1, 1), torch.bfloat16, device, generator)
    x = normal((op.tokens * op.top_k, op.hidden), "bf16", device, generator)
    ends = torch.bincount(routing(op, device, generator).flatten(), minlength=op.experts).cumsum(0).to(torch.int32)

    def call() -> object:
        up, down = ((w.to(torch.bfloat16) * by_expert).transpose(1, 2) for w in narrow)
        return grouped(x, up, down, ends, gated=True)

    return call
