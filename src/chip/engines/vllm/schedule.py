"""vLLM's scheduler (V1, offline): which tokens of which requests a step holds.

Defaults as in vLLM 0.26's EngineArgs for the offline `LLM` class: a step holds at most 16384 tokens of 1024 requests on
a GPU of 70 GiB or more (8192 of 256 on smaller ones); graphs are captured for 1, 2, 4, then every 8 to 256 and every 16
to 512 tokens.
"""

from __future__ import annotations

from chip.engines import chunked
from chip.engines.playing import Weighted
from chip.types import Scenario, Seq, Step

LARGE_GPU_BYTES = 70 * 2**30
STEP_TOKENS_LARGE, STEP_TOKENS_SMALL = 16384, 8192  # max_num_batched_tokens
SEQS_LARGE, SEQS_SMALL = 1024, 256  # max_num_seqs
GRAPH_TOKENS = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))


def step_tokens(memory_bytes: float) -> int:
    return STEP_TOKENS_LARGE if memory_bytes >= LARGE_GPU_BYTES else STEP_TOKENS_SMALL


def max_seqs(memory_bytes: float) -> int:
    """Requests that run at once; the others wait."""
    return SEQS_LARGE if memory_bytes >= LARGE_GPU_BYTES else SEQS_SMALL


def padded(tokens: int) -> int:
    """Tokens of the CUDA graph that a step of so many tokens runs in; as many as they are if no graph is that large."""
    return chunked.padded(tokens, GRAPH_TOKENS)


def _step(seqs: tuple[Seq, ...]) -> Step:
    tokens = sum(s.new * s.count for s in seqs)
    return Step(seqs, padded(tokens) - tokens, tokens <= GRAPH_TOKENS[-1])


def prefill(scenario: Scenario, memory_bytes: float) -> Weighted:
    return chunked.prefill_steps(scenario, step_tokens(memory_bytes), max_seqs(memory_bytes), _step)


def decode(scenario: Scenario, memory_bytes: float) -> Step:
    return chunked.decode_step(scenario, max_seqs(memory_bytes), _step)
