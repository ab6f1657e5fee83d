"""vLLM's scheduler (V1, offline): which tokens of which requests a step holds. Graphs are captured for 1, 2, 4, then
every 8 to 256 and every 16 to 512 tokens."""

from __future__ import annotations

from chip.engines import chunked
from chip.engines.playing import Weighted
from chip.engines.vllm.options import VllmOptions
from chip.types import Scenario, Seq, Step

GRAPH_TOKENS = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))


def padded(tokens: int) -> int:
    """Tokens of the CUDA graph that a step of so many tokens runs in; as many as they are if no graph is that large."""
    return chunked.padded(tokens, GRAPH_TOKENS)


def _step(seqs: tuple[Seq, ...]) -> Step:
    tokens = sum(s.new * s.count for s in seqs)
    return Step(seqs, padded(tokens) - tokens, tokens <= GRAPH_TOKENS[-1])


def prefill(scenario: Scenario, options: VllmOptions) -> Weighted:
    return chunked.prefill_steps(scenario, options.max_num_batched_tokens, options.max_num_seqs, _step)


def decode(scenario: Scenario, options: VllmOptions) -> Step:
    return chunked.decode_step(scenario, options.max_num_seqs, _step)
