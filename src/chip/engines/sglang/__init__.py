"""SGLang (0.5): prompts in steps of their own, which come before decodes; decodes in CUDA graphs.

Its kernels and fusions are taken as vLLM's, which began as the same (sgl-kernel forked vLLM's; FlashInfer, DeepGEMM and
CUTLASS serve both): merged projections, norms with the addition before them, FlashAttention-3 on Hopper, FlashInfer and
TensorRT-LLM's kernels on Blackwell. Nothing of it was measured here: terms of engine and host are vLLM's, widened.
Settings and defaults: sgl-project/sglang, python/sglang/srt/server_args.py (0.5.x).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chip.decoders.decoder import Decoder
from chip.decoders.formats import WeightFormat
from chip.dtypes import Precision
from chip.engines import Engine, EngineVersion, Serves
from chip.engines.chunked import decode_step, prefill_steps
from chip.engines.formats import GpuFormats
from chip.engines.memory import Load, Room
from chip.engines.options import Limits
from chip.engines.timeline import LiveScheduler, Weighted
from chip.engines.vllm import Vllm, kernels
from chip.types import ChipError, Scenario, Seq, Step

# By least memory: tokens of a chunk of prompts, and requests of the largest CUDA graph
BY_MEMORY = ((160 * 2**30, 16384, 512), (60 * 2**30, 8192, 256), (35 * 2**30, 4096, 32), (0, 2048, 24))
MOST_REQUESTS = 4096
# In MiB, what is kept free of the pool: 512, 1.5 for each token of a chunk, 2 for each request of the largest graph
RESERVED, PER_TOKEN, PER_GRAPH = 512, 1.5, 2.0
CONTEXT_BYTES = 1.0e9
GRAPHS = (1, 2, 4, *range(8, 160, 8), *range(160, 513, 32))


@dataclass(frozen=True, slots=True)
class SglangOptions:
    """By SGLang's own names. `context_length` is 0 for what the model and memory allow."""

    chunked_prefill_size: int
    cuda_graph_max_bs: int
    mem_fraction_static: float  # of the card, for weights and cache
    max_running_requests: int = MOST_REQUESTS
    page_size: int = 1
    context_length: int = 0
    disable_radix_cache: bool = False
    disable_overlap_schedule: bool = False
    enable_mixed_chunk: bool = False
    scheduler_recv_interval: int = 1  # steps of decodes between two looks at what has come


class Sglang(Vllm):
    NAME = "sglang"
    TITLE = "SGLang 0.5, default settings"
    CAVEAT = (
        "sglang: nothing of it was measured here; its kernels are taken as vLLM's, terms of engine and host are vLLM's "
        "on the reference host, widened"
    )
    LIKE = "vllm"
    DRAFTS: Mapping[str, bool] = {}
    CALIBRATION = ()
    LAB, PACKAGE = (), ""
    CIRCULATES = False
    GRAPH_TOKENS, OF_STEPS = GRAPHS, ()
    LIMITS: Limits = {
        "chunked_prefill_size": (1, 1 << 20), "cuda_graph_max_bs": (1, GRAPHS[-1]),
        "max_running_requests": (1, 1 << 16), "mem_fraction_static": (0.0, 0.99), "page_size": (1, 1 << 10),
        "context_length": (0, 1 << 40), "scheduler_recv_interval": (1, 10000),
    }  # fmt: skip
    ALIASES = {"max_prefill_tokens": "chunked_prefill_size"}
    ELSEWHERE = {
        "tp_size": "tp",
        "pp_size": "pp",
        "ep_size": "ep",
        "kv_cache_dtype": "kv_dtype",
        "quantization": "dtype",
    }
    SERVES = Serves(states=True, exchange="all-gather and reduce-scatter")
    VERSIONS = (EngineVersion("0", True, "fa3", 256, reduces_and_norms=10.0),)
    NEEDS = ()
    paged = Engine.paged

    def defaults(self, memory_bytes: float) -> Any:
        chunk, graph = next((c, g) for least, c, g in BY_MEMORY if memory_bytes >= least)
        reserved_bytes = (RESERVED + PER_TOKEN * chunk + PER_GRAPH * graph) * 2**20
        return SglangOptions(chunk, graph, round(max(0.1, 1 - reserved_bytes / max(memory_bytes, 1.0)), 3))

    def options(self, settings: Any, memory_bytes: float) -> Any:
        chosen: SglangOptions = Engine.options(self, settings, memory_bytes)
        if chosen.chunked_prefill_size < chosen.page_size:
            raise ChipError("chunked_prefill_size must be at least page_size: SGLang refuses this too")
        return chosen

    def server(self) -> None:  # type: ignore[override]
        """Nobody measured one."""

    def prefill(self, scenario: Scenario, options: Any) -> Weighted:
        return prefill_steps(scenario, options.chunked_prefill_size, options.max_running_requests, self.step)

    def decode(self, scenario: Scenario, options: Any) -> Step:
        return decode_step(scenario, options.max_running_requests, self.step)

    def graph_tokens(self, options: Any) -> tuple[int, ...]:
        return GRAPHS

    def step(self, seqs: tuple[Seq, ...], options: Any = None) -> Step:
        """Only decodes run as graphs."""
        return super().step(seqs) if all(s.new == 1 for s in seqs) else Step(seqs)

    def runs_as(
        self, capability: float, d: Decoder | None = None, options: Any = None, version: str = ""
    ) -> Mapping[str, str]:
        return super().runs_as(capability, d, None, version)

    def about_format(self, stored: WeightFormat, gpu: GpuFormats, options: Any) -> str:
        return kernels.taken_as(self.NAME, stored, gpu)

    def room(self, scenario: Scenario, options: Any) -> Room:
        longest, sequences = scenario.prompt + scenario.output, min(scenario.batch, options.max_running_requests)
        return Room(
            options.mem_fraction_static, CONTEXT_BYTES, longest, options.chunked_prefill_size, sequences,
            longest=options.context_length, at_once=options.max_running_requests,
        )  # fmt: skip

    def peak_bytes(self, d: Decoder, p: Precision, s: Scenario, room: Room) -> float:
        """What the static share leaves of the card is for steps: nothing is taken off the pool."""
        return 0.0

    def pool_tokens(self, load: Load, longest: int, pool_bytes: float, options: Any) -> int:
        return Engine.pool_tokens(self, load, longest, pool_bytes, options)

    def over_capacity(self, context: int, capacity: int) -> str:
        return Engine.over_capacity(self, context, capacity)

    def scheduler(self, options: Any) -> LiveScheduler:
        """Requests are admitted when their prompt and part of their answer fit; prompts run in steps of their own."""
        return LiveScheduler(
            options.max_running_requests, options.chunked_prefill_size, max(1, options.page_size),
            max_model_len=options.context_length, enable_prefix_caching=not options.disable_radix_cache,
            async_scheduling=not options.disable_overlap_schedule, mixes_prompts=options.enable_mixed_chunk,
            polls_every=options.scheduler_recv_interval,
        )  # fmt: skip


ENGINE = Sglang()
