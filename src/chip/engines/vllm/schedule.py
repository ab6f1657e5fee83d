"""vLLM's scheduler (V1, offline): which tokens of which requests a step holds.

Defaults as in vLLM 0.26's EngineArgs for the offline `LLM` class: a step holds at most 16384 tokens of 1024 requests on
a GPU of 70 GiB or more (8192 of 256 on smaller ones); graphs are captured for 1, 2, 4, then every 8 to 256 and every 16
to 512 tokens.
"""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, floor

from chip.engines.context import PANELS, decode_contexts
from chip.engines.playing import Weighted
from chip.records import replace
from chip.types import Scenario, Seq, Step

LARGE_GPU_BYTES = 70 * 2**30
STEP_TOKENS_LARGE, STEP_TOKENS_SMALL = 16384, 8192  # max_num_batched_tokens
SEQS_LARGE, SEQS_SMALL = 1024, 256  # max_num_seqs
GRAPH_TOKENS = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
EXACT_STEPS = 4  # schedules longer than this are integrated, not walked
WHOLE = 1e-6  # by which sums of steps and tokens are off whole numbers


def step_tokens(memory_bytes: float) -> int:
    return STEP_TOKENS_LARGE if memory_bytes >= LARGE_GPU_BYTES else STEP_TOKENS_SMALL


def max_seqs(memory_bytes: float) -> int:
    """Requests that run at once; the others wait."""
    return SEQS_LARGE if memory_bytes >= LARGE_GPU_BYTES else SEQS_SMALL


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
    if not waves:
        return _wave(scenario, step_tokens(memory_bytes))
    last = _wave(replace(scenario, batch=scenario.batch - waves * most), step_tokens(memory_bytes))
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
    """Many steps: full ones, with few to all requests decoding along, at a few depths into the prompt, and a last one
    with what is left, which reads all weights again. Weighted to make up the whole."""
    prompt, total = scenario.prompt, scenario.batch * scenario.prompt
    mixes = decode_contexts(0, scenario.batch if scenario.output > 1 else 1, 1)
    steps = sum([share * total / (budget - decoding) for decoding, share in mixes])
    decoding = mixes[-1][0]
    rest = min(ceil(total * (1 - floor(steps + WHOLE) / steps) - WHOLE), budget - decoding)
    found = []
    for along, share in mixes:
        found += _steps_of(prompt, along, budget - along, share * (total - rest) / (budget - along))
    return (*found, *(_steps_of(prompt, decoding, rest, 1.0, panels=0) if rest > 0 else ()))


def _steps_of(prompt: int, decoding: int, room: int, weight: float, panels: int = 1) -> list[tuple[Step, float]]:
    """So many steps with room for as many prompt tokens, beside sequences that decode."""
    along = (Seq(1, prompt, decoding),) if decoding else ()
    return [(_step((*along, *seqs)), weight * part) for seqs, part in _filled(prompt, room, panels)]


def _filled(prompt: int, room: int, panels: int) -> list[tuple[tuple[Seq, ...], float]]:
    """What a step with room for so many prompt tokens holds on average: exact in tokens and in attended pairs."""
    if prompt > room:
        return [((Seq(room, past, 1),), part) for past, part in decode_contexts(0, prompt - room + 1, panels)]
    whole, rest = divmod(room, prompt)
    cut = (Seq(rest, (prompt - rest) // 2, 1),) if rest else ()  # the middle of a prompt cut somewhere
    return [((Seq(prompt, 0, whole), *cut), 1.0)]


def decode(scenario: Scenario, memory_bytes: float, panels: int = PANELS, windows: Collection[int] = ()) -> Weighted:
    batch = min(scenario.batch, max_seqs(memory_bytes))
    points = decode_contexts(scenario.prompt, scenario.output - 1, panels)
    return tuple((_step((Seq(1, past, batch),)), weight) for past, weight in points)
