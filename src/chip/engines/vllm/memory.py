"""vLLM's memory rules: a share of the card, room for its largest step, and the rest as a pool of KV blocks."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from chip.engines.playing import Room
from chip.engines.vllm.options import VllmOptions
from chip.types import Scenario

# vLLM sizes its pool by what it sees grow after the CUDA context is made. This number meets the recorded pools.
CONTEXT_BYTES = 0.5e9
STEPS_IN_FLIGHT = 2  # one runs while the next is scheduled
EQUAL_GROUPS_RATIO = 1.25  # two kinds of layers whose numbers differ by less form groups of the larger number


def room(scenario: Scenario, options: VllmOptions) -> Room:
    longest, sequences = scenario.prompt + scenario.output, min(scenario.batch, options.max_num_seqs)
    share, step_tokens = options.gpu_memory_utilization, options.max_num_batched_tokens
    return Room(
        share, CONTEXT_BYTES, longest, step_tokens, sequences,
        longest=options.max_model_len, at_once=options.max_num_seqs,
    )  # fmt: skip


def cache_tokens(
    layers: Mapping[int, int], longest: int, token_bytes: float, room_bytes: float, options: VllmOptions
) -> int:
    """How many tokens vLLM says its cache holds: the tokens of as many requests of the longest context as fit.

    `layers`: how many layers have a window of so many tokens, or none (0). Where a model has both, layers are dealt to
    groups of one size, and each group has blocks of its own. A group with a window keeps the window, what two steps can
    bring, and one block more. `token_bytes`: of a token in all layers.
    """
    if options.num_gpu_blocks:
        return options.num_gpu_blocks * options.block_size
    if len(layers) < 2 or not longest:
        return max(0, int(room_bytes // token_bytes))
    few, many = min(layers.values()), max(layers.values())
    size = many if many < EQUAL_GROUPS_RATIO * few else few
    in_flight = STEPS_IN_FLIGHT * options.max_num_batched_tokens
    blocks, block_tokens = 0, options.block_size
    for window, count in layers.items():
        tokens = min(window - 1 + in_flight, longest) if window else longest
        kept = ceil(tokens / block_tokens) + bool(window)
        blocks += ceil(count / size) * kept
    block_bytes = token_bytes / sum(layers.values()) * size * block_tokens
    return max(0, int(room_bytes // block_bytes / blocks * longest))
