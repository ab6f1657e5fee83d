"""vLLM (V1 engine, offline `LLM` class, default settings without prefix caching)."""

from __future__ import annotations

from collections.abc import Mapping

from chip.engines import hf
from chip.engines.calibration import FAMILIES, TWO_DEPTHS, CalibrationModel, cut
from chip.engines.playing import Played
from chip.engines.terms import Terms
from chip.engines.versions import version_at
from chip.engines.vllm.memory import cache_tokens, peak_bytes, room
from chip.engines.vllm.options import ALIASES, ELSEWHERE, VllmOptions, options
from chip.engines.vllm.rewrite import HALVES, UNCOMPILED, rewrite
from chip.engines.vllm.schedule import decode, prefill
from chip.engines.vllm.versions import VERSIONS
from chip.timeline import HostCost, Timeline

__all__ = ["cache_tokens", "decode", "options", "peak_bytes", "prefill", "rewrite", "room", "VERSIONS"]

NAME = "vllm"
TITLE = "vLLM, offline LLM class, default settings without prefix caching"
TERMS = (
    *("gap_s", "step_s", "first_s", "request_s"),
    *("host_step_s", "host_seq_s", "host_kernel_s", "host_experts_s", "host_piece_s"),
)
OVERLAPS_STEPS = VERSIONS[0].overlaps_steps
QUANTISED_CACHE = True
OPTIONS = (*VllmOptions.__match_args__, *ALIASES)
OPTIONS_ELSEWHERE = ELSEWHERE
# Attention: over splits of the cache, then their sum. Experts: count pairs, place them, up, act, down, sum; in fp8 also
# the rounding of both inputs. Router: product, choice.
KERNELS = {
    **dict.fromkeys(("attention", "local_attention", "mla", "mla_prompt", "moe_router"), 2),
    **{"moe_experts": 6, "packed_experts": 6, "scaled_experts": 8},
}
HOPPER, NEXT = 9.0, 10.0  # compute capabilities
PREFIXED = ("Gemma3ForConditionalGeneration",)  # whose images attend both ways, which only Triton's attention does
TOKENS = (
    *((1, prompt) for prompt in (16, 128, 512, 1024, 2048)),
    *((8, 16), (32, 16), (32, 128), (32, 512), (128, 16)),
)
ONE_DEPTH = ((1, 16), (1, 128), (1, 600), (1, 4096), (8, 16), (8, 512), (32, 16), (32, 128))
# In the two of Mistral-7B the device sets the time: they tell what kernels take in the engine beyond their time alone.
CALIBRATION: tuple[CalibrationModel, ...] = (
    *cut(("llama",), TWO_DEPTHS, TOKENS),
    CalibrationModel("mistral", "mistral-7b", (16, 28), ((1, 128), (1, 1024), (8, 512), (32, 512))),
    *cut(FAMILIES, TWO_DEPTHS[1:], ONE_DEPTH),
)

COMPILED = ("rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm", "silu_mul", "gelu", "relu", "rope")
RUNS_AS = {
    **dict.fromkeys(("linear", "embedding", "bmm"), "torch"),
    **dict.fromkeys(("kv_append", "kv_append_fp8"), "paged"),
    **dict.fromkeys(("moe_router", "grouped_router", "biased_router", "moe_experts", "scaled_experts"), "vllm"),
    **dict.fromkeys(("mla", "mla_prompt"), "fa3 layer"),
    "shared_silu_mul": "compiled",
    **dict.fromkeys(("quantize", "rms_norm_quant", "add_rms_norm_quant", "silu_mul_quant"), "compiled|vllm"),
    "fp8_attention": "fa3",
    "sampling": "fp32",
}


def runs_as(capability: float, options: Mapping[str, str]) -> Mapping[str, str]:
    """Norms, rotations and activations are compiled by torch, or are PyTorch's own in a model that is not compiled.
    Attention is measured among the kernels of a layer where it can be (`layer`). Experts are Triton kernels."""
    uncompiled = options.get("architecture") in UNCOMPILED
    on_hopper = HOPPER <= capability < NEXT
    return {
        **(hf.RUNS_AS if uncompiled else dict.fromkeys(COMPILED, "compiled cold")),
        **RUNS_AS,
        **dict.fromkeys(("attention", "local_attention"), _attention(capability, options) + " layer"),
        "scaled_linear": "deepgemm" if options.get("deep_gemm") else "cutlass",
        "packed_linear": "machete" if on_hopper else "marlin",
        "packed_experts": "triton|marlin" if on_hopper else "marlin",  # Triton: mxfp4 alone
    }


def _attention(capability: float, options: Mapping[str, str]) -> str:
    """On Hopper it depends on the version. Newer GPUs run FlashInfer, if it was measured, others FlashAttention-2."""
    if options.get("architecture") in PREFIXED:
        return "triton"
    if capability < HOPPER or options.get("alibi"):  # biases that FlashAttention-3 does not take
        return "fa2|flash"
    if capability >= NEXT:
        return "flashinfer|fa2|flash"
    found = version_at(NAME, VERSIONS, options.get("version", ""))
    assert found
    return found.hopper_attention


def play(t: Timeline, step: Played, terms: Terms) -> None:
    """A decode step is one graph. A prefill of few tokens is a graph for each layer, with attention launched between.
    A larger one is launched kernel by kernel, and so is every prefill of a model that is not compiled."""
    t.prepare("schedule", terms.prepare_s(step.sequences))
    if step.graph and step.decode:
        t.graph("step", 0.0, step.device_s(t) + terms.step_s)
        return
    if any(HALVES[0] in block.launches.names for block in step.blocks):
        t.layers(step.blocks, HostCost(terms.host_kernel_s, 0.0))  # PyTorch's kernels of an operator count as one
    elif step.graph:
        t.layers([block.as_one("layer") for block in step.blocks], HostCost(terms.host_piece_s, 0.0))
    else:
        t.layers(step.blocks, HostCost(0.0, terms.host_kernel_s, terms.host_experts_s))
    t.graph("sampling", 0.0, terms.step_s)
