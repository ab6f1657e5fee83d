"""vLLM (V1 engine, offline `LLM` class, default settings without prefix caching)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from chip.decoders.decoder import Decoder
from chip.decoders.formats import WeightFormat
from chip.dtypes import Precision
from chip.engines import Engine, EngineVersion, Needs, Serves, chunked, hf
from chip.engines.calibration import FAMILIES, TWO_DEPTHS, CalibrationModel, cut
from chip.engines.formats import GpuFormats
from chip.engines.memory import Load
from chip.engines.options import Limits, Settings
from chip.engines.server import ServerCost
from chip.engines.timeline import HostCost, LiveScheduler, Played, Terms, Timeline, Weighted
from chip.engines.vllm import kernels, memory, sampling, server
from chip.engines.vllm.options import ALIASES, ELSEWHERE, GRAPH_TOKENS, LIMITS, VllmOptions, defaults, graph_sizes
from chip.engines.vllm.rewrite import HALVES, UNCOMPILED, rewrite
from chip.types import Program, Scenario, Step

HOPPER, NEXT = 9.0, 10.0  # compute capabilities
PREFIXED = ("Gemma3ForConditionalGeneration",)  # whose images attend both ways, which only Triton's attention does
TOKENS = (
    *((1, prompt) for prompt in (16, 128, 512, 1024, 2048)),
    *((8, 16), (32, 16), (32, 128), (32, 512), (128, 16)),
)
ONE_DEPTH = ((1, 16), (1, 128), (1, 600), (1, 4096), (8, 16), (8, 512), (32, 16), (32, 128))
COMPILED = ("rms_norm", "add_rms_norm", "layer_norm", "add_layer_norm", "silu_mul", "gelu", "relu", "rope")
RUNS_AS = {
    **dict.fromkeys(("linear", "embedding", "bmm"), "torch"),
    **dict.fromkeys(("kv_append", "kv_append_fp8"), "paged"),
    **dict.fromkeys(("moe_router", "grouped_router", "biased_router", "moe_experts", "scaled_experts"), "vllm"),
    **dict.fromkeys(("mla", "mla_prompt"), "fa3 layer"),
    "all_reduce": "vllm",
    "shared_silu_mul": "compiled",
    **dict.fromkeys(("quantize", "rms_norm_quant", "add_rms_norm_quant", "silu_mul_quant"), "compiled|vllm"),
    "fp8_attention": "fa3",
    "sampling": "fp32",
}
RESERVED_BLOCKS = 1  # that means "nothing"
# What decides how steps run. Pull requests are those of vllm-project/vllm.
VERSIONS = (
    EngineVersion(
        "0.14",
        True,
        "fa3",
        256,
        "asynchronous scheduling by default: #27614; over several GPUs a decode's all-reduce and norm are one of "
        "FlashInfer's kernels: fuse_allreduce_rms at -O2, vllm/config/vllm.py",
        HOPPER,
    ),
    EngineVersion(
        "0.12", False, "fa3", 256, "shared experts on a stream of their own: #26440, #28406; on NVIDIA's GPUs: #30085"
    ),
    EngineVersion("0.7", False, "fa3", 0, "FlashAttention-3 on Hopper: #12093; the host works between two steps"),
    EngineVersion("0", False, "fa2|flash", 0, "vllm-flash-attn 2.6.1 in requirements-cuda.txt of 0.5.4 to 0.6.1"),
)


class Vllm(Engine):
    NAME = "vllm"
    TITLE = "vLLM, offline LLM class, default settings without prefix caching"
    TERMS = (
        *("gap_s", "step_s", "first_s", "request_s"),
        *("host_step_s", "host_seq_s", "host_kernel_s", "host_experts_s", "host_piece_s"),
    )
    # Attention: over splits of the cache, then their sum. Experts: count pairs, place them, up, act, down, sum; in fp8
    # also the rounding of both inputs. Router: product, choice.
    KERNELS = {
        **dict.fromkeys(("attention", "local_attention", "mla", "mla_prompt", "moe_router"), 2),
        **{"moe_experts": 6, "packed_experts": 6, "scaled_experts": 8},
    }
    CIRCULATES = True
    LAB: tuple[str, ...] = ("cuda",)
    PACKAGE = "vllm"
    GRAPH_TOKENS: tuple[int, ...] = GRAPH_TOKENS
    OF_STEPS: tuple[str, ...] = ("max_cudagraph_capture_size", "deep_gemm")
    LIMITS: Limits = LIMITS
    ALIASES, ELSEWHERE = ALIASES, ELSEWHERE
    # In the two of Mistral-7B the device sets the time: they tell what kernels take in the engine beyond their time
    # alone.
    DRAFTS: Mapping[str, bool] = {"ngram": False, "draft": True, "eagle3": True, "mtp": True}
    CALIBRATION = (
        *cut(("llama",), TWO_DEPTHS, TOKENS),
        CalibrationModel("mistral", "mistral-7b", (16, 28), ((1, 128), (1, 1024), (8, 512), (32, 512))),
        *cut(FAMILIES, TWO_DEPTHS[1:], ONE_DEPTH),
    )
    POOL = QUANTISED_CACHE = True
    SERVES = Serves(states=True, exchange="all-gather and reduce-scatter (vLLM's default)")
    VERSIONS: tuple[EngineVersion, ...] = VERSIONS
    NEEDS: tuple[Needs, ...] = (
        Needs("0.21.0", "7.5", "vLLM 0.21.0, docs/getting_started/installation/gpu.cuda.inc.md"),
        Needs("0", "7.0", "vLLM 0.3.3 to 0.14.0, docs, installation on GPUs"),
    )

    defaults, rewrite = staticmethod(defaults), staticmethod(rewrite)
    room, peak_bytes = staticmethod(memory.room), staticmethod(memory.peak_bytes)
    cache_as_run = staticmethod(kernels.cache_as_run)

    def server(self) -> ServerCost:
        return server.cost()

    def server_settings(self, memory_bytes: float) -> Mapping[str, Any]:
        return server.settings(memory_bytes)

    def options(self, settings: Settings, memory_bytes: float) -> VllmOptions:
        chosen: VllmOptions = super().options(settings, memory_bytes)
        chosen.check()
        return chosen

    def graph_tokens(self, options: VllmOptions | None) -> tuple[int, ...]:
        return graph_sizes(options.max_cudagraph_capture_size) if options else GRAPH_TOKENS

    def prefill(self, scenario: Scenario, options: VllmOptions) -> Weighted:
        step = partial(self.step, options=options)
        return chunked.prefill_steps(scenario, options.max_num_batched_tokens, options.max_num_seqs, step)

    def decode(self, scenario: Scenario, options: VllmOptions) -> Step:
        return chunked.decode_step(scenario, options.max_num_seqs, partial(self.step, options=options))

    def runs_as(
        self, capability: float, d: Decoder | None = None, options: VllmOptions | None = None, version: str = ""
    ) -> Mapping[str, str]:
        """Norms, rotations and activations are compiled by torch, or are PyTorch's own in a model that is not compiled.
        Attention is measured among the kernels of a layer where it can be (`layer`). Experts are Triton kernels."""
        uncompiled = d is not None and d.architecture in UNCOMPILED
        on_hopper = HOPPER <= capability < NEXT
        return {
            **(hf.RUNS_AS if uncompiled else dict.fromkeys(COMPILED, "compiled cold")),
            **RUNS_AS,
            **dict.fromkeys(
                ("attention", "local_attention"), _attention(capability, d, self.version(version)) + " layer"
            ),
            "scaled_linear": "deepgemm" if options and options.deep_gemm else "cutlass",
            "packed_linear": "machete" if on_hopper else "marlin",
            "packed_experts": "triton|marlin" if on_hopper else "marlin",  # Triton: mxfp4 alone
        }

    def sampled(self, last: Program, parts: tuple[str, ...], vocab: int) -> Program:
        return sampling.sampled(last, parts, vocab)

    def format_as_run(self, stored: WeightFormat, p: Precision, gpu: GpuFormats) -> tuple[WeightFormat | None, str]:
        return kernels.format_as_run(stored, gpu)

    def about_format(self, stored: WeightFormat, gpu: GpuFormats, options: VllmOptions) -> str:
        return kernels.about_format(stored, gpu, options.deep_gemm)

    def play(self, t: Timeline, step: Played, terms: Terms) -> None:
        """A decode step is one graph. A prefill of few tokens is a graph for each layer, with attention launched
        between. A larger one is launched kernel by kernel, and so is every prefill of a model that is not compiled."""
        t.prepare("schedule", terms.prepare_s(step.sequences))
        if step.graph and step.decode:
            t.graph("step", 0.0, step.device_s(t) + terms.step_s)
            return
        if any(HALVES[0] in launches.names for _, launches in step.launches):
            t.launch(step, HostCost(terms.host_kernel_s, 0.0))  # PyTorch's kernels of an operator count as one
        elif step.graph:
            t.layers([block.as_one("layer") for block in step.blocks], HostCost(terms.host_piece_s, 0.0))
        else:
            t.launch(step, HostCost(0.0, terms.host_kernel_s, terms.host_experts_s))
        t.graph("sampling", 0.0, terms.step_s)

    def pool_tokens(self, load: Load, longest: int, pool_bytes: float, options: VllmOptions) -> int:
        return memory.cache_tokens(load.decoder, load.precision, load.scenario.tp, longest, pool_bytes, options)

    def over_capacity(self, context: int, capacity: int) -> str:
        said = super().over_capacity(context, capacity)
        return f"{said}: vLLM does not start without max_model_len={capacity} or less"

    def scheduler(self, options: VllmOptions) -> LiveScheduler:
        shared = {f.name: getattr(options, f.name) for f in fields(LiveScheduler) if hasattr(options, f.name)}
        return LiveScheduler(**shared, reserved_blocks=RESERVED_BLOCKS)

    def paged(
        self,
        d: Decoder,
        p: Precision,
        tp: int,
        settings: LiveScheduler,
        tokens: int,
        longest: int,
        options: VllmOptions,
    ) -> tuple[LiveScheduler, int]:
        """Beside states blocks are longer. With prefix caching a request holds two slots of each state, or one for
        every block of its tokens."""
        found = memory.layout(d, p, tp, settings.block_size, settings.enable_prefix_caching)
        if found.states and not found.groups and longest:  # a state for each request is all there is
            return replace(settings, block_size=longest), tokens // longest
        if not found.states or not longest:
            return super().paged(d, p, tp, settings, tokens, longest, options)
        plain = memory.layout(d, p, tp, options.block_size)
        room_bytes = tokens * plain.blocks(longest, 0) / longest * plain.block_bytes
        together = sum(group.count for group in found.groups) + (found.states if found.per_block else 0)
        slots = 0 if found.per_block else found.states * (2 if settings.enable_prefix_caching else 1)
        sized = replace(settings, block_size=found.block_tokens, state_blocks=-(-slots // together))
        return sized, int(room_bytes / found.block_bytes / together)


def _attention(capability: float, d: Decoder | None, version: EngineVersion) -> str:
    """On Hopper it depends on the version. Newer GPUs run FlashInfer, if it was measured, others FlashAttention-2."""
    if d and d.architecture in PREFIXED:
        return "triton"
    if capability < HOPPER or (d and d.alibi):  # biases that FlashAttention-3 does not take
        return "fa2|flash"
    if capability >= NEXT:
        return "flashinfer|fa2|flash"
    return version.hopper_attention


ENGINE = Vllm()
