"""vLLM's memory rules: a share of the card, less the weights and what its profile run sees, is a pool of KV blocks.

Before it takes the pool, vLLM runs the largest step that it would schedule, samples from it, and subtracts what was
alive at most. `peak_bytes` follows vLLM 0.26 through that run (`Worker.determine_available_memory`).
`benchmarks/kv_pools.py` holds it against the recorded pools, fits the three constants that no code says, and measures
pools on a GPU.

The pool is dealt into blocks of a KV cache and slots of states. Layers of one kind form groups of one size, and all
groups take blocks of one size (`get_kv_cache_groups`). Beside states, blocks of attention are as long as it takes to be
no smaller than a state (`_align_hybrid_block_size`): a sequence then holds a block of each group of states.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from math import ceil, lcm
from typing import NamedTuple

from chip.decoders import roles
from chip.decoders.compressed import CompressedAttn
from chip.decoders.decoder import Decoder, LatentAttn, Layer, Mlp, Moe
from chip.decoders.states import CHUNKS, NO_MIXER, StateMixer
from chip.dtypes import BYTES, Precision
from chip.engines.memory import Room
from chip.engines.vllm.options import BLOCK_TOKENS, GRAPH_TOKENS, VllmOptions
from chip.types import Scenario

# What vLLM sees grow beside its tensors: kernels as they are loaded, and cuBLAS's workspace.
CONTEXT_BYTES = 0.282e9

LATENT_CHUNK = 64 * 1024  # tokens of context whose keys and values are expanded from their latents at once
# Models of experts run on vLLM's first model runner, but for these. Dense ones run on the second. Only the first tries
# top-k and top-p in its profile run, and only it sets the memory of CUDA graphs aside.
SECOND_RUNNER = ("DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM")
SAMPLED_BYTES = 2  # alive for each logit where the likeliest token is taken: the logit
FILTERED_BYTES = 2 + 4 + 4 + 4  # ... where top-k and top-p are tried: its fp32 copy, probabilities and noise besides
# CUDA graphs are of two kinds: of a step's pieces between attention, up to twice as many tokens as sequences may run,
# and of whole steps, up to as many.
GRAPH_SPLITS = 32  # parts that attention's keys may be cut into inside a graph, each with an fp32 result of its own
GRAPH_BYTES = 2**20  # that vLLM takes for a graph at least, and ...
GRAPH_LAYER_BYTES = 101e3  # ... for each layer in it
FIRST_RUNNER_BYTES = 0.110e9  # kernels that are loaded when graphs are first tried
EQUAL_GROUPS_RATIO = 1.5  # kinds of layers whose numbers differ by less form groups of the larger number
LATENT_BLOCK_TOKENS = 64  # of FlashMLA, beside states
STEPS_IN_FLIGHT = 2  # one runs while the next is scheduled
# Classes that keep a state for every block of tokens, so that any prefix can be found (SupportsMambaPrefixCaching)
FINDS_STATES = (
    *("FalconH1ForCausalLM", "FalconMambaForCausalLM", "GraniteMoeHybridForCausalLM", "JambaForCausalLM"),
    *("Mamba2ForCausalLM", "MambaForCausalLM", "NemotronHForCausalLM", "NemotronHPuzzleForCausalLM"),
    "Zamba2ForCausalLM",
)


def room(scenario: Scenario, options: VllmOptions) -> Room:
    longest, sequences = scenario.prompt + scenario.output, min(scenario.batch, options.max_num_seqs)
    share, step_tokens = options.gpu_memory_utilization, options.max_num_batched_tokens
    return Room(
        share, CONTEXT_BYTES, longest, step_tokens, sequences,
        longest=options.max_model_len, at_once=options.max_num_seqs,
    )  # fmt: skip


def peak_bytes(d: Decoder, p: Precision, s: Scenario, room: Room) -> float:
    """The most that vLLM sees alive in its profile run beside the weights, and what it sets aside for graphs."""
    return _peak_bytes(d, p, s.tp, s.ep, room._replace(cache_tokens=0, sequences=0))


@lru_cache(maxsize=256)
def _peak_bytes(d: Decoder, p: Precision, tp: int, ep: int, room: Room) -> float:
    """The same whatever batch and lengths."""
    parts = terms(d, p, Scenario(1, 1, 1, tp=tp, ep=ep), room)
    return max(parts["forward"], parts["sampling"]) + parts["graphs"] + parts["beside_weights"]


def terms(d: Decoder, p: Precision, s: Scenario, room: Room) -> dict[str, float]:
    """Bytes of the parts of the profile run: the most alive in a step, and while its tokens are sampled; what is set
    aside for graphs; and what is stored for good beside the weights."""
    width, tokens = BYTES[p.activation], room.step_tokens
    stream = tokens * d.hidden * width
    workspace = forward = 0.0
    for _, layer in d.layers:  # experts share a workspace that grows at the first of them and stays
        workspace = max(workspace, _workspace_bytes(layer, d.hidden, p, s, tokens, width))
        forward = max(forward, workspace + _alive_bytes(layer, p, s, stream, tokens, width))
        if isinstance(layer.attn, LatentAttn):
            forward = max(forward, workspace + stream + _expanded_bytes(layer.attn, d, s, room, width))
    first_runner = d.experts > 0 and d.architecture not in SECOND_RUNNER
    of_logit = FILTERED_BYTES if first_runner else SAMPLED_BYTES
    return {
        "forward": forward,
        "sampling": workspace + stream + min(tokens, room.at_once) * d.vocab * of_logit,
        "graphs": _graph_bytes(d, s, room.at_once) + FIRST_RUNNER_BYTES if first_runner else 0.0,
        "beside_weights": _beside_weights(d, p, s, width),
    }


def _alive_bytes(layer: Layer, p: Precision, s: Scenario, stream: float, tokens: int, width: float) -> float:
    """While a layer's MLP runs: the output of attention and the residual stream before and after it, then what the MLP
    reads and writes. Its activation is written beside its input where it is gated, else over it."""
    a, mlp = layer.attn, layer.mlp
    if isinstance(a, StateMixer):
        attended = tokens * (sum(n for _, n in a.inputs) + a.width) / s.tp * width
    else:
        attended = tokens * a.heads / s.tp * (a.v_dim if isinstance(a, LatentAttn) else a.head_dim) * width
    around = attended + 2 * stream
    if isinstance(mlp, Moe):  # with the layer's input and output, and a copy of the input
        shared = 3 * tokens * mlp.shared.intermediate / s.tp * width if mlp.shared else 0.0
        return around + max(3 * stream, 2 * stream + shared)
    inner = tokens * mlp.intermediate / s.tp * width
    if mlp.gated:
        return around + inner * _gated_copies(layer, p, width)
    return around + inner + (2 if layer.placement.startswith("parallel") else 1) * stream


def _gated_copies(layer: Layer, p: Precision, width: float) -> float:
    """How often the inside of a gated MLP is alive: both halves, their product, and the product rounded. Rounding to
    fp8 happens in the kernel that multiplies."""
    form = layer.format_of(roles.DOWN_PROJ, p)
    if not form or not form.input:
        return 3.0
    return (2.0 if form.input == "fp8" else 3.0) + BYTES[form.input] / width


def _workspace_bytes(layer: Layer, hidden: int, p: Precision, s: Scenario, tokens: int, width: float) -> float:
    """Of the experts of a layer: what all their tokens read and write, of every replica's tokens. Triton's kernels for
    4-bit floats keep less: what is between the two products, and the result."""
    mlp = layer.mlp
    if isinstance(mlp, Mlp):
        return 0.0
    inner, tokens = mlp.intermediate / (s.tp if s.ep == 1 else 1), tokens * s.replicas
    form = layer.format_of(roles.EXPERTS, p)
    if form and form.dtype == "fp4":
        return tokens * (mlp.top_k * inner + hidden) * width
    return tokens * mlp.top_k * (max(inner, hidden) + max((2 if mlp.gated else 1) * inner, hidden)) * width


def _expanded_bytes(a: LatentAttn, d: Decoder, s: Scenario, room: Room, width: float) -> float:
    """Of latent attention: queries, latents and results of a step, and the keys and values of a chunk of context."""
    least = 4 * room.at_once * BLOCK_TOKENS
    chunk = min(max(8 * (room.longest or d.max_context), least), LATENT_CHUNK)
    of_step = room.step_tokens * (a.heads / s.tp * (a.qk_dim + a.v_dim) + a.kv_rank + a.rope_dim)
    return (of_step + chunk * a.heads / s.tp * (a.nope_dim + a.v_dim)) * width


def _graph_bytes(d: Decoder, s: Scenario, sequences: int) -> float:
    """Of the first graph of a whole step, attention's parts; of every other one, what its kernels take."""
    a = next((layer.attn for _, layer in d.layers if not isinstance(layer.attn, StateMixer)), None)
    of_head = 0 if a is None else a.kv_rank if isinstance(a, LatentAttn) else a.head_dim
    split = (a.heads if a else 0) / s.tp * of_head * BYTES["fp32"]
    pieces, whole = [n for n in GRAPH_TOKENS if n <= 2 * sequences], [n for n in GRAPH_TOKENS if n <= sequences]
    others = len(pieces) + len(whole) - 2
    return float(max(whole) * GRAPH_SPLITS * split + others * max(GRAPH_BYTES, GRAPH_LAYER_BYTES * d.layer_count))


def _beside_weights(d: Decoder, p: Precision, s: Scenario, width: float) -> float:
    """Tables of angles, and the expansion of latents once more in 16 bits where it is stored in fewer."""
    total = (d.angle_rows or d.max_context) * max(layer.attn.rope_dim for _, layer in d.layers) * width
    for n, layer in d.layers:
        a = layer.attn
        if isinstance(a, LatentAttn) and layer.format_of(roles.KV_UP, p):
            total += n * a.kv_rank * a.heads / s.tp * (a.nope_dim + a.v_dim) * width
    return total


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
    if not dealt.groups:  # states alone
        return max(0, int(room_bytes // dealt.block_bytes)) * longest
    if not longest or (len(dealt.groups) == 1 and not dealt.states):
        return max(0, int(room_bytes // d.kv_bytes(1, p, tp=tp)))
    blocks = dealt.blocks(longest, STEPS_IN_FLIGHT * options.max_num_batched_tokens)
    return max(0, int(room_bytes // dealt.block_bytes / blocks * longest))
