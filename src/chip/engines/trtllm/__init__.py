"""TensorRT-LLM (PyTorch backend): prompts and decodes in one step, prompts whole unless chunks are switched on.

Its kernels and fusions are taken as vLLM's, which runs many of its own through FlashInfer on Blackwell. Nothing of it
was measured here: terms of engine and host are vLLM's, widened. Settings and defaults: NVIDIA/TensorRT-LLM,
tensorrt_llm/llmapi/llm_args.py (1.x): the cache takes a share of 0.9 of what weights and the largest step leave, a
started request is never paused (GUARANTEED_NO_EVICT), the next step is prepared while one runs (overlap scheduler).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chip.decoders.decoder import Decoder
from chip.decoders.formats import WeightFormat
from chip.engines import Engine, EngineVersion, Serves
from chip.engines.chunked import decode_step, prefill_steps
from chip.engines.formats import GpuFormats
from chip.engines.memory import Load, Room
from chip.engines.options import Limits
from chip.engines.timeline import LiveScheduler, Weighted
from chip.engines.vllm import Vllm, kernels
from chip.types import ChipError, Scenario, Seq, Step

CONTEXT_BYTES = 1.5e9  # driver, NCCL and kernels beside the tensors
GRAPHS = (1, 2, 4, *range(8, 129, 8), 256, 512, 1024)  # requests; padded to the next


@dataclass(frozen=True, slots=True)
class TrtllmOptions:
    """By TensorRT-LLM's own names. `max_seq_len` is 0 for what the model and memory allow."""

    max_batch_size: int = 2048
    max_num_tokens: int = 8192
    free_gpu_memory_fraction: float = 0.9
    tokens_per_block: int = 32
    max_seq_len: int = 0
    enable_block_reuse: bool = True
    enable_chunked_prefill: bool = False
    disable_overlap_scheduler: bool = False


class Trtllm(Vllm):
    NAME = "trtllm"
    TITLE = "TensorRT-LLM 1.x, PyTorch backend, default settings"
    CAVEAT = (
        "trtllm: nothing of it was measured here; its kernels are taken as vLLM's, terms of engine and host are vLLM's "
        "on the reference host, widened"
    )
    LIKE = "vllm"
    DRAFTS: Mapping[str, bool] = {}
    CALIBRATION = ()
    LAB, PACKAGE = (), ""
    CIRCULATES = False
    GRAPH_TOKENS, OF_STEPS = GRAPHS, ()
    LIMITS: Limits = {
        "max_batch_size": (1, 1 << 16), "max_num_tokens": (1, 1 << 20), "free_gpu_memory_fraction": (0.01, 1.0),
        "tokens_per_block": (1, 1 << 10), "max_seq_len": (0, 1 << 40),
    }  # fmt: skip
    ALIASES = {"kv_cache_free_gpu_memory_fraction": "free_gpu_memory_fraction"}
    ELSEWHERE = {
        "tp_size": "tp", "tensor_parallel_size": "tp", "pp_size": "pp", "ep_size": "ep",
        "moe_expert_parallel_size": "ep", "kv_cache_dtype": "kv_dtype",
    }  # fmt: skip
    SERVES = Serves(exchange="all-gather and reduce-scatter")
    VERSIONS = (EngineVersion("0", True, "fa3", 256, reduces_and_norms=9.0),)
    NEEDS = ()
    paged = Engine.paged

    def defaults(self, memory_bytes: float) -> Any:
        return TrtllmOptions()

    def options(self, settings: Any, memory_bytes: float) -> Any:
        chosen: TrtllmOptions = Engine.options(self, settings, memory_bytes)
        if chosen.max_num_tokens < chosen.tokens_per_block:
            raise ChipError("max_num_tokens must be at least tokens_per_block")
        return chosen

    def server(self) -> None:  # type: ignore[override]
        """Nobody measured one."""

    def prefill(self, scenario: Scenario, options: Any) -> Weighted:
        return prefill_steps(scenario, options.max_num_tokens, options.max_batch_size, self.step)

    def decode(self, scenario: Scenario, options: Any) -> Step:
        return decode_step(scenario, options.max_batch_size, self.step)

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
        longest, sequences = scenario.prompt + scenario.output, min(scenario.batch, options.max_batch_size)
        return Room(
            1.0, CONTEXT_BYTES, longest, options.max_num_tokens, sequences,
            longest=options.max_seq_len, at_once=options.max_batch_size,
        )  # fmt: skip

    def pool_tokens(self, load: Load, longest: int, pool_bytes: float, options: Any) -> int:
        return Engine.pool_tokens(self, load, longest, pool_bytes * options.free_gpu_memory_fraction, options)

    def over_capacity(self, context: int, capacity: int) -> str:
        return Engine.over_capacity(self, context, capacity)

    def scheduler(self, options: Any) -> LiveScheduler:
        return LiveScheduler(
            options.max_batch_size, options.max_num_tokens, options.tokens_per_block,
            max_model_len=options.max_seq_len, enable_prefix_caching=options.enable_block_reuse,
            async_scheduling=not options.disable_overlap_scheduler,
        )  # fmt: skip


ENGINE = Trtllm()
