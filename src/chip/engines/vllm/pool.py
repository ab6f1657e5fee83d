"""How vLLM 0.26 deals its pool of memory into blocks of a KV cache and slots of states.

Layers of one kind form groups of one size, and all groups take blocks of one size, so that a block serves any of them
(`get_kv_cache_groups`). Beside states, blocks of attention are as long as it takes to be no smaller than a state
(`_align_hybrid_block_size`): a sequence then holds a block of each group of states, however long it is.
"""

from __future__ import annotations

from collections import Counter
from math import ceil, lcm
from typing import NamedTuple

from chip.decoders.compressed import CompressedAttn
from chip.decoders.decoder import Decoder, LatentAttn
from chip.decoders.states import CHUNKS, NO_MIXER
from chip.dtypes import Precision
from chip.engines.vllm.options import BLOCK_TOKENS, VllmOptions

EQUAL_GROUPS_RATIO = 1.5  # kinds of layers whose numbers differ by less form groups of the larger number
LATENT_BLOCK_TOKENS = 64  # of FlashMLA, beside states
STEPS_IN_FLIGHT = 2  # one runs while the next is scheduled
# Classes that keep a state for every block of tokens, so that any prefix can be found (SupportsMambaPrefixCaching)
FINDS_STATES = (
    *("FalconH1ForCausalLM", "FalconMambaForCausalLM", "GraniteMoeHybridForCausalLM", "JambaForCausalLM"),
    *("Mamba2ForCausalLM", "MambaForCausalLM", "NemotronHForCausalLM", "NemotronHPuzzleForCausalLM"),
    "Zamba2ForCausalLM",
)


class Group(NamedTuple):
    """Groups of layers that attend alike."""

    count: int  # type: ignore[assignment]  # instead of the method of every tuple
    window: int  # 0: none
    block_tokens: int


class Layout(NamedTuple):
    block_bytes: float  # of all layers of a group
    groups: tuple[Group, ...]
    states: int = 0  # groups of layers with a state
    per_block: bool = False  # a state is kept for every block of tokens

    @property
    def block_tokens(self) -> int:
        return self.groups[0].block_tokens if self.groups else BLOCK_TOKENS

    def blocks(self, tokens: int, in_flight: int) -> int:
        """Of a request of so many tokens. A group with a window keeps the window, what two steps can bring, and one
        block more."""
        total = 0
        for g in self.groups:
            kept = min(g.window - 1 + in_flight, tokens) if g.window else tokens
            total += g.count * (ceil(kept / g.block_tokens) + bool(g.window))
        return total + self.states * (ceil(tokens / self.block_tokens) if self.per_block else 1)


def layout(d: Decoder, p: Precision, tp: int, block_size: int = BLOCK_TOKENS, finds_states: bool = False) -> Layout:
    """`finds_states`: with prefix caching, whose granularity the states of some models follow."""
    windows, token_bytes = Counter[int](), dict[int, float]()
    for n, layer in d.layers:
        one = layer.token_bytes(p, tp)
        if one:
            windows[layer.attn.window] += n
            token_bytes[layer.attn.window] = max(one, token_bytes.get(layer.attn.window, 0.0))
    states = [(n, mixer) for n, mixer in d.states if mixer is not NO_MIXER]
    if not states and len(windows) < 2:
        return Layout(d.kv_bytes(1, p, tp=tp) * block_size, (Group(1, 0, block_size),))
    page_bytes, per_block = block_size * max(token_bytes.values(), default=0.0), False
    if states:
        state_bytes = max(mixer.state_bytes(p, tp) for _, mixer in states)
        if not token_bytes:
            return Layout(state_bytes * sum(n for n, _ in states), (), 1)
        per_block = finds_states and d.architecture in FINDS_STATES
        at_once = _alignment(d, block_size, per_block)
        block_size = max(block_size, at_once * ceil(state_bytes / (at_once * max(token_bytes.values()))))
        page_bytes = block_size * max(token_bytes.values())
    kinds = [*windows.values(), *([sum(n for n, _ in states)] if states else [])]
    few, many = min(kinds), max(kinds)
    size = many if many < EQUAL_GROUPS_RATIO * few else few
    groups = tuple(
        Group(ceil(n / size), window, int(page_bytes // token_bytes[window])) for window, n in sorted(windows.items())
    )
    return Layout(page_bytes * size, groups, ceil(kinds[-1] / size) if states else 0, per_block)


def _alignment(d: Decoder, block_size: int, per_block: bool) -> int:
    """Tokens that a block beside states is a multiple of."""
    latent = any(isinstance(layer.attn, LatentAttn) for _, layer in d.layers)
    of_kernel = max(block_size, LATENT_BLOCK_TOKENS if latent else BLOCK_TOKENS)
    return lcm(of_kernel, max(CHUNKS[mixer.kind] for _, mixer in d.states)) if per_block else of_kernel


def cache_tokens(d: Decoder, p: Precision, tp: int, longest: int, room_bytes: float, options: VllmOptions) -> int:
    """How many tokens vLLM says its cache holds: the tokens of as many requests of the longest context as fit."""
    dealt, count = layout(d, p, tp, options.block_size), options.num_gpu_blocks
    if count and not (dealt.states and longest):
        return count * options.block_size
    if count:
        return int(count / dealt.blocks(longest, 0) * longest)
    of_request = d.kv_bytes(longest, p, tp=tp) + d.state_bytes(p, tp) if longest else 0.0
    if longest and any(isinstance(layer.attn, CompressedAttn) for _, layer in d.layers):
        return int(max(0.0, room_bytes) / of_request * longest)
    if not longest or (len(dealt.groups) == 1 and not dealt.states):
        return max(0, int(room_bytes // d.kv_bytes(1, p, tp=tp))) if dealt.groups else 0
    blocks = dealt.blocks(longest, STEPS_IN_FLIGHT * options.max_num_batched_tokens)
    return max(0, int(room_bytes // dealt.block_bytes / blocks * longest))
