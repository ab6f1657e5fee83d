"""vLLM's memory rules: a share of the card, room for its largest step, and the rest as a pool of KV blocks."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from chip.engines.playing import Room
from chip.engines.vllm.schedule import max_seqs, step_tokens
from chip.types import Scenario

MEMORY_SHARE = 0.92  # gpu_memory_utilization, vLLM 0.26's default: in the configuration of every recorded run
# vLLM sizes its pool by what it sees grow after the CUDA context is made. This number meets the recorded pools.
CONTEXT_BYTES = 0.5e9
BLOCK_TOKENS = 16
STEPS_IN_FLIGHT = 2  # one runs while the next is scheduled
EQUAL_GROUPS_RATIO = 1.25  # two kinds of layers whose numbers differ by less form groups of the larger number


def room(scenario: Scenario, memory_bytes: float) -> Room:
    sequences = min(scenario.batch, max_seqs(memory_bytes))
    return Room(MEMORY_SHARE, CONTEXT_BYTES, scenario.prompt + scenario.output, step_tokens(memory_bytes), sequences)


def cache_tokens(
    layers: Mapping[int, int], longest: int, token_bytes: float, room_bytes: float, memory_bytes: float
) -> int:
    """How many tokens vLLM says its cache holds: the tokens of as many requests of the longest context as fit.

    `layers`: how many layers have a window of so many tokens, or none (0). Where a model has both, layers are dealt to
    groups of one size, and each group has blocks of its own. A group with a window keeps the window, what two steps can
    bring, and one block more. `token_bytes`: of a token in all layers.
    """
    if len(layers) < 2 or not longest:
        return max(0, int(room_bytes // token_bytes))
    few, many = min(layers.values()), max(layers.values())
    size = many if many < EQUAL_GROUPS_RATIO * few else few
    in_flight = STEPS_IN_FLIGHT * step_tokens(memory_bytes)
    blocks = 0
    for window, count in layers.items():
        kept = ceil(min(window - 1 + in_flight, longest) / BLOCK_TOKENS) + 1 if window else ceil(longest / BLOCK_TOKENS)
        blocks += ceil(count / size) * kept
    block_bytes = token_bytes / sum(layers.values()) * size * BLOCK_TOKENS
    return max(0, int(room_bytes // block_bytes / blocks * longest))
