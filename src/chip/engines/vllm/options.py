"""What vLLM can be told: its own names, and the defaults of vLLM 0.26's EngineArgs for the offline `LLM` class.

A step holds at most 16384 tokens of 1024 requests on a GPU of 70 GiB or more (8192 of 256 on smaller ones).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from chip.types import ChipError

LARGE_GPU_BYTES = 70 * 2**30
STEP_TOKENS_LARGE, STEP_TOKENS_SMALL = 16384, 8192
SEQS_LARGE, SEQS_SMALL = 1024, 256
BLOCK_TOKENS = 16
LARGEST_GRAPH = 512
GRAPH_TOKENS = (1, 2, 4, *range(8, 256, 8), *range(256, LARGEST_GRAPH + 1, 16))  # sizes of its CUDA graphs
ALIASES = {"num_gpu_blocks_override": "num_gpu_blocks"}
# What predictions take as an option of their own
ELSEWHERE = {
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "kv_cache_dtype": "kv_dtype",
    "quantization": "dtype",
    "dtype": "dtype",
}
LIMITS: dict[str, tuple[float, float]] = {
    "max_num_seqs": (1, 16384),
    "max_num_batched_tokens": (1, 1 << 20),
    "block_size": (1, 1 << 16),
    "num_gpu_blocks": (0, 1 << 40),
    "max_model_len": (0, 1 << 40),
    "gpu_memory_utilization": (0.01, 1.0),
    "watermark": (0.0, 0.999),
    "max_cudagraph_capture_size": (1, 1 << 14),
}


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """`num_gpu_blocks` and `max_model_len` are 0 for what the GPU's memory and the model allow."""

    max_num_seqs: int  # requests that run at once; the others wait
    max_num_batched_tokens: int  # in a step
    block_size: int = BLOCK_TOKENS
    num_gpu_blocks: int = 0
    max_model_len: int = 0
    gpu_memory_utilization: float = 0.92
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    async_scheduling: bool = True
    scheduler_reserve_full_isl: bool = True  # admit a request only when its whole prompt fits into free blocks
    watermark: float = 0.0  # share of the blocks that admission keeps free
    max_cudagraph_capture_size: int = LARGEST_GRAPH  # tokens of the largest CUDA graph
    deep_gemm: bool = False  # products of fp8 in blocks by DeepGEMM, where it is installed

    def check(self) -> None:
        if not self.enable_chunked_prefill:
            raise ChipError("engine setting enable_chunked_prefill: false is not predicted; true is vLLM's default")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ChipError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): vLLM refuses this too"
            )


@lru_cache(maxsize=16)
def graph_sizes(largest: int) -> tuple[int, ...]:
    """Up to one of so many tokens."""
    more = range(GRAPH_TOKENS[-1] + 16, largest + 1, 16)
    return tuple(n for n in (*GRAPH_TOKENS, *more) if n <= largest)


def defaults(memory_bytes: float) -> VllmOptions:
    """On a GPU of this size."""
    large = memory_bytes >= LARGE_GPU_BYTES
    return VllmOptions(SEQS_LARGE, STEP_TOKENS_LARGE) if large else VllmOptions(SEQS_SMALL, STEP_TOKENS_SMALL)
