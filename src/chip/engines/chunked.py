"""A scheduler with chunked prefill: running requests first, then waiting ones in order, as many tokens as a step takes.

vLLM's and our own engine's are both like this; they differ in how many tokens a step takes and in what a step is.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, floor

from chip.engines.context import decode_contexts
from chip.engines.playing import Weighted
from chip.types import Scenario, Seq, Step

EXACT_STEPS = 64  # schedules longer than this are integrated, not walked
WHOLE = 1e-6  # by which sums of steps and tokens are off whole numbers
MakeStep = Callable[[tuple[Seq, ...]], Step]


def wave(scenario: Scenario, budget: int, step: MakeStep) -> Weighted:
    """Steps of at most so many tokens until every request has its first token. Those that have it decode along in the
    later steps."""
    total = scenario.batch * scenario.prompt
    if total <= budget:
        return ((step((Seq(scenario.prompt, 0, scenario.batch),)), 1.0),)
    if total > EXACT_STEPS * budget or 2 * scenario.batch > budget:  # the more decode along, the less a step gets on
        return _long_prefill(scenario, budget, step)
    return tuple((step(s), 1.0) for s in _chunks(scenario, budget))


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


def _long_prefill(scenario: Scenario, budget: int, step: MakeStep) -> Weighted:
    """Many steps: full ones, with few to all requests decoding along, at a few depths into the prompt, and a last one
    with what is left, which reads all weights again. Weighted to make up the whole."""
    prompt, total = scenario.prompt, scenario.batch * scenario.prompt
    mixes = decode_contexts(0, scenario.batch if scenario.output > 1 else 1, 1)
    steps = sum([share * total / (budget - decoding) for decoding, share in mixes])
    decoding = mixes[-1][0]
    rest = min(ceil(total * (1 - floor(steps + WHOLE) / steps) - WHOLE), budget - decoding)
    found = []
    for along, share in mixes:
        found += _steps_of(step, prompt, along, budget - along, share * (total - rest) / (budget - along))
    return (*found, *(_steps_of(step, prompt, decoding, rest, 1.0, panels=0) if rest > 0 else ()))


def _steps_of(
    step: MakeStep, prompt: int, decoding: int, room: int, weight: float, panels: int = 1
) -> list[tuple[Step, float]]:
    """So many steps with room for as many prompt tokens, beside sequences that decode."""
    along = (Seq(1, prompt, decoding),) if decoding else ()
    return [(step((*along, *seqs)), weight * part) for seqs, part in _filled(prompt, room, panels)]


def _filled(prompt: int, room: int, panels: int) -> list[tuple[tuple[Seq, ...], float]]:
    """What a step with room for so many prompt tokens holds on average: exact in tokens and in attended pairs."""
    if prompt > room:
        return [((Seq(room, past, 1),), part) for past, part in decode_contexts(0, prompt - room + 1, panels)]
    whole, rest = divmod(room, prompt)
    cut = (Seq(rest, (prompt - rest) // 2, 1),) if rest else ()  # the middle of a prompt cut somewhere
    return [((Seq(prompt, 0, whole), *cut), 1.0)]
