"""vLLM (V1 engine, offline): merged projections, fused norms, chunked prefill, CUDA graphs up to 512 tokens.

Defaults as in vLLM 0.26's EngineArgs for the offline `LLM` class: a step holds at most 16384 tokens of 1024 requests
on a GPU of 70 GiB or more (8192 of 256 on smaller ones); graphs are captured for 1, 2, 4, then every 8 to 256 and
every 16 to 512 tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from math import ceil

from chip.engines import Weighted
from chip.engines.context import PANELS, decode_contexts
from chip.engines.fuse import apply, fuse_gelu, fuse_head_norms, fuse_quantize, fuse_residual_norms, merge_linears
from chip.ops.attention import Attention
from chip.ops.bmm import Bmm
from chip.ops.kv_append import KvAppend
from chip.ops.linear import Linear
from chip.ops.mla import Mla
from chip.ops.rope import Rope
from chip.types import Call, Program, Scenario, Seq, Step

NAME = "vllm"
TITLE = "vLLM, offline LLM class, default settings without prefix caching"
LATENT_KV = True
# Norms, rotations and activations are what torch.compile makes of them, measured so or else one pass over their bytes.
# Attention is FlashAttention-3 over pages; experts are its Triton kernels, which it prefers on Hopper.
RUNS_AS = {
    "linear": "torch",
    "embedding": "torch",
    "attention": "fa3",
    "attention_decode": "fa3",
    **dict.fromkeys(("rms_norm", "add_rms_norm", "silu_mul", "rope"), "compiled"),
    **dict.fromkeys(("layer_norm", "add_layer_norm", "gelu", "silu", "relu"), "one_pass"),
    "kv_append": "paged",
    "moe_experts": "vllm",
    "moe_router": "vllm",
    "sampling": "fp32",
}
CAVEAT = ""
# Attention: splits are combined. Experts: count pairs, place them, up, act, down, sum. Router: product, choice.
KERNELS = {"attention": 2, "moe_experts": 6, "moe_router": 2}
MEMORY_SHARE = 0.92  # gpu_memory_utilization, vLLM 0.26's default: in the configuration of every recorded run

LARGE_GPU_BYTES = 70 * 2**30
STEP_TOKENS_LARGE, STEP_TOKENS_SMALL = 16384, 8192  # max_num_batched_tokens
SEQS_LARGE, SEQS_SMALL = 1024, 256  # max_num_seqs
GRAPH_TOKENS = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
BLOCK_TOKENS = 16  # of the KV cache
STEPS_IN_FLIGHT = 2  # one runs while the next is scheduled
ALIKE_GROUPS = 1.25  # kinds of layers up to so much apart in number share a size of groups
EXACT_STEPS = 4  # schedules longer than this are integrated, not walked


def step_tokens(memory_bytes: float) -> int:
    return STEP_TOKENS_LARGE if memory_bytes >= LARGE_GPU_BYTES else STEP_TOKENS_SMALL


def max_seqs(memory_bytes: float) -> int:
    """Requests that run at once; the others wait."""
    return SEQS_LARGE if memory_bytes >= LARGE_GPU_BYTES else SEQS_SMALL


def cache_tokens(
    layers: Mapping[int, int], longest: int, token_bytes: float, room_bytes: float, memory_bytes: float
) -> int:
    """How many tokens vLLM says its cache holds: as many as requests of the longest context that fit have together.

    `layers`: how many have a window of so many tokens, or none (0). Where there are both, layers are dealt to groups of
    one size, each with blocks of its own. A group with a window keeps, beside the window, what two steps can bring, and
    one block more. `token_bytes`: of all layers.
    """
    if len(layers) < 2 or not longest:
        return max(0, int(room_bytes // token_bytes))
    few, many = min(layers.values()), max(layers.values())
    size = many if many < ALIKE_GROUPS * few else few
    in_flight = STEPS_IN_FLIGHT * step_tokens(memory_bytes)
    blocks = 0
    for window, count in layers.items():
        kept = ceil(min(window - 1 + in_flight, longest) / BLOCK_TOKENS) + 1 if window else ceil(longest / BLOCK_TOKENS)
        blocks += ceil(count / size) * kept
    block_bytes = token_bytes / sum(layers.values()) * size * BLOCK_TOKENS
    return max(0, int(room_bytes // block_bytes / blocks * longest))


def padded(tokens: int) -> int:
    """Tokens of the graph that a step of so many tokens runs in; itself when it is too large for a graph."""
    return _PADDED[tokens] if tokens < len(_PADDED) else tokens


_PADDED = tuple(next(g for g in GRAPH_TOKENS if g >= n) for n in range(GRAPH_TOKENS[-1] + 1))


def _step(seqs: tuple[Seq, ...]) -> Step:
    tokens = sum(s.new * s.count for s in seqs)
    return Step(seqs, padded(tokens) - tokens, tokens <= GRAPH_TOKENS[-1])


def prefill(scenario: Scenario, memory_bytes: float) -> Weighted:
    """Steps until every request has its first token. Requests beyond what the engine runs at once wait for whole waves
    before them to end."""
    most = max_seqs(memory_bytes)
    waves = (scenario.batch - 1) // most
    last = _wave(replace(scenario, batch=scenario.batch - waves * most), step_tokens(memory_bytes))
    if not waves:
        return last
    full = replace(scenario, batch=most)
    steps = [(step, weight * waves) for step, weight in _wave(full, step_tokens(memory_bytes))]
    if scenario.output > 1:
        steps += [(step, weight * waves * (scenario.output - 1)) for step, weight in decode(full, memory_bytes)]
    return (*steps, *last)


def _wave(scenario: Scenario, budget: int) -> Weighted:
    """Requests that have their first token decode along in the later steps."""
    total = scenario.batch * scenario.prompt
    if total <= budget:
        return ((_step((Seq(scenario.prompt, 0, scenario.batch),)), 1.0),)
    if total > EXACT_STEPS * budget:
        return _long_prefill(scenario, budget)
    return tuple((_step(s), 1.0) for s in _chunks(scenario, budget))


def _chunks(scenario: Scenario, budget: int) -> list[tuple[Seq, ...]]:
    """The scheduler, token by token of its budget: running requests first, then waiting ones in order."""
    prompt, steps = scenario.prompt, []
    waiting, partial, running = scenario.batch, 0, 0
    while waiting:
        decoding = running if scenario.output > 1 else 0
        seqs = [Seq(1, prompt, decoding)] if decoding else []
        room = budget - decoding
        if partial:
            new = min(prompt - partial, room)
            seqs.append(Seq(new, partial, 1))
            room -= new
            partial += new
            if partial == prompt:
                partial, waiting, running = 0, waiting - 1, running + 1
        whole = min(waiting - (1 if partial else 0), room // prompt)
        if whole:
            seqs.append(Seq(prompt, 0, whole))
            room -= whole * prompt
            waiting -= whole
            running += whole
        if room and waiting and not partial:
            seqs.append(Seq(room, 0, 1))
            partial = room
        steps.append(tuple(seqs))
    return steps


def _long_prefill(scenario: Scenario, budget: int) -> Weighted:
    """Many steps: full ones, with few to all requests decoding along, at a few depths into the prompt, weighted to make
    up the whole."""
    steps = []
    for decoding, share in decode_contexts(0, scenario.batch if scenario.output > 1 else 1, 1):
        room = budget - decoding
        along = (Seq(1, scenario.prompt, decoding),) if decoding else ()
        weight = share * scenario.batch * scenario.prompt / room
        steps += [(_step((*along, *seqs)), weight * part) for seqs, part in _filled(scenario.prompt, room)]
    return tuple(steps)


def _filled(prompt: int, room: int) -> list[tuple[tuple[Seq, ...], float]]:
    """What a step with room for so many prompt tokens holds on average: exact in tokens and in attended pairs."""
    if prompt > room:
        return [((Seq(room, past, 1),), part) for past, part in decode_contexts(0, prompt - room + 1, 1)]
    whole, rest = divmod(room, prompt)
    cut = (Seq(rest, (prompt - rest) // 2, 1),) if rest else ()  # the middle of a prompt cut somewhere
    return [((Seq(prompt, 0, whole), *cut), 1.0)]


def decode(scenario: Scenario, memory_bytes: float, panels: int = PANELS, windows: Collection[int] = ()) -> Weighted:
    batch = min(scenario.batch, max_seqs(memory_bytes))
    points = decode_contexts(scenario.prompt, scenario.output - 1, panels)
    return tuple((_step((Seq(1, past, batch),)), weight) for past, weight in points)


def rotate_apart(calls: list[Call]) -> list[Call]:
    """torch.compile makes one kernel of the rotation of queries and one of that of keys; one of both where they are
    alike in number."""
    attention = next((c.op for c in calls if isinstance(c.op, Attention)), None)
    if attention is None or attention.heads == attention.kv_heads:
        return calls
    out = []
    for c in calls:
        if isinstance(c.op, Rope):
            out.append(Call("q_rope", replace(c.op, heads=attention.heads)))
            out.append(Call("k_rope", replace(c.op, heads=attention.kv_heads)))
        else:
            out.append(c)
    return out


RULES = (
    merge_linears(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    merge_linears(("gate_proj", "up_proj"), "gate_up_proj"),
    merge_linears(("shared_gate_proj", "shared_up_proj"), "shared_gate_up_proj"),
    fuse_residual_norms,
    fuse_quantize,
    fuse_head_norms,
    rotate_apart,
    fuse_gelu,
)


def rewrite(program: Program, decode: bool, architecture: str = "") -> Program:
    return apply(program, *RULES, _absorb) if decode else apply(program, *RULES)


def _absorb(calls: list[Call]) -> list[Call]:
    """Decode over a latent cache: the up-projection of keys and values moves into queries and outputs."""
    up = next((c.op for c in calls if c.role == "kv_up"), None)
    old = next((c.op for c in calls if c.role == "attention"), None)
    if not isinstance(up, Linear) or not isinstance(old, Attention):
        return calls
    rope_dim = old.head_dim - (up.n // old.heads - old.v_head_dim)
    nope_dim = old.head_dim - rope_dim
    out = []
    for c in calls:
        if c.role == "kv_up":
            continue
        if c.role == "attention":
            out.append(Call("q_absorb", Bmm(old.heads, up.m, up.k, nope_dim, old.dtype)))
            out.append(Call("attention", Mla(1, old.heads, up.k, rope_dim, 1, 1, True, old.dtype)))
            out.append(Call("v_absorb", Bmm(old.heads, up.m, old.v_head_dim, up.k, old.dtype)))
        elif c.role == "kv_append":
            out.append(Call(c.role, KvAppend(up.m, up.k + rope_dim, old.dtype)))
        else:
            out.append(c)
    return out
