"""A scheduler with chunked prefill: running requests first, then waiting ones in order, as many tokens as a step takes.

vLLM's and our own engine's are both like this; they differ in how many tokens a step takes and in what a step is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from math import ceil, floor

from chip.engines.context import decode_contexts
from chip.engines.playing import Weighted
from chip.records import replace
from chip.types import Scenario, Seq, Step

EXACT_STEPS, LEAST_STEPS = 64, 16  # that are walked, the fewer the more are integrated after them
WHOLE = 1e-6  # by which sums of steps and tokens are off whole numbers
MakeStep = Callable[[tuple[Seq, ...]], Step]


def prefill_steps(scenario: Scenario, budget: int, most: int, step: MakeStep) -> Weighted:
    """Steps until every request has its first token. Requests beyond `most`, which run at once, wait for whole waves
    before them to end."""
    before = (scenario.batch - 1) // most
    last = wave(replace(scenario, batch=scenario.batch - before * most), budget, step)
    if not before:
        return last
    full = replace(scenario, batch=most)
    steps = [(made, weight * before) for made, weight in wave(full, budget, step)]
    if scenario.output > 1:
        steps.append((decode_step(full, most, step), float(before * (scenario.output - 1))))
    return (*steps, *last)


def padded(tokens: int, sizes: Sequence[int]) -> int:
    """The smallest CUDA graph that so many tokens fit in; the tokens themselves where they are too many for any."""
    at = bisect_left(sizes, tokens)
    return sizes[at] if at < len(sizes) else tokens


def decode_step(scenario: Scenario, most: int, step: MakeStep) -> Step:
    """Of all requests that run at once."""
    made = step((Seq(1, scenario.prompt, min(scenario.batch, most)),))
    return made._replace(steps=scenario.decode_steps)


def wave(scenario: Scenario, budget: int, step: MakeStep) -> Weighted:
    """Steps of at most so many tokens until every request has its first token. Those that have it decode along in the
    later steps. The first ones are as the scheduler makes them: what is integrated goes on from there, so that it meets
    them."""
    batch, prompt = scenario.batch, scenario.prompt
    if batch * prompt <= budget:
        return ((step((Seq(prompt, 0, batch),)), 1.0),)
    chunks: list[tuple[Seq, ...]] = []
    left = (batch, 0)
    if 2 * batch <= budget:  # the more decode along, the less a step gets on
        most = max(LEAST_STEPS, 2 * EXACT_STEPS - batch * prompt // budget)
        chunks, left = _chunks(scenario, budget, min(most, EXACT_STEPS))
    return (*((step(s), 1.0) for s in chunks), *(_long_prefill(scenario, budget, step, *left) if left[0] else ()))


def _chunks(scenario: Scenario, budget: int, most: int) -> tuple[list[tuple[Seq, ...]], tuple[int, int]]:
    """The scheduler, token by token of its budget: running requests first, then waiting ones in order. Also how many
    still wait, and tokens of the first of them that are computed."""
    prompt = scenario.prompt
    steps: list[tuple[Seq, ...]] = []
    waiting, partial = scenario.batch, 0
    while waiting and len(steps) < most:
        decoding = scenario.batch - waiting if scenario.output > 1 else 0
        seqs = [Seq(1, prompt, decoding)] if decoding else []
        room = budget - decoding
        if partial:
            new = min(prompt - partial, room)
            seqs.append(Seq(new, partial, 1))
            room -= new
            partial += new
            if partial == prompt:
                partial, waiting = 0, waiting - 1
        whole = min(waiting - (1 if partial else 0), room // prompt)
        if whole:
            seqs.append(Seq(prompt, 0, whole))
            room -= whole * prompt
            waiting -= whole
        if room and waiting and not partial:
            seqs.append(Seq(room, 0, 1))
            partial = room
        steps.append(tuple(seqs))
    return steps, (waiting, partial)


def _long_prefill(scenario: Scenario, budget: int, step: MakeStep, waiting: int, partial: int) -> Weighted:
    """Many steps: full ones, with few to all requests decoding along, at a few depths into the prompt, and a last one
    with what is left, which reads all weights again. Weighted to make up the whole."""
    prompt, decodes, running = scenario.prompt, scenario.output > 1, scenario.batch - waiting
    spans: list[tuple[int, float, int]] = []  # requests that decode, tokens, and where in a prompt those begin
    if partial:
        spans.append((running * decodes, prompt - partial, partial))
    if whole := waiting - len(spans):
        mixes = decode_contexts(running + len(spans), whole) if decodes else [(0, 1.0)]
        spans += [(decoding, share * whole * prompt, 0) for decoding, share in mixes]
    total = sum([tokens for _, tokens, _ in spans])
    steps = sum([tokens / (budget - decoding) for decoding, tokens, _ in spans])
    decoding, _, begun = spans[-1]
    rest = min(ceil(total * (1 - floor(steps + WHOLE) / steps) - WHOLE), budget - decoding)
    found = []
    for along, tokens, at in spans if rest < total else ():
        room = budget - along
        found += _steps_of(step, prompt, along, room, (1 - rest / total) * tokens / room, at)
    return (*found, *(_steps_of(step, prompt, decoding, rest, 1.0, begun, once=True) if rest > 0 else ()))


def _steps_of(
    step: MakeStep, prompt: int, decoding: int, room: int, weight: float, begun: int, once: bool = False
) -> list[tuple[Step, float]]:
    """So many steps with room for as many prompt tokens, beside sequences that decode. What they hold on average: exact
    in tokens and in attended pairs. A chunk, at a few depths (`once`: in the middle), or, as often as a prompt ends in
    the step, that end and the next one's begin. `begun`: tokens of a prompt alone that are computed."""
    along = (Seq(1, prompt, decoding),) if decoding else ()
    alone = begun and prompt - begun >= room
    ending = 0.0 if alone else min(1.0, room / prompt)
    found = [(_across(prompt, room), ending)] if ending else []
    if ending < 1:
        first, last = begun if alone else 0, prompt - room
        depths = [((first + last) // 2, 1.0)] if once else decode_contexts(first, last - first + 1)
        found += [((Seq(room, past, 1),), part * (1 - ending)) for past, part in depths]
    return [(step((*along, *seqs)), weight * part) for seqs, part in found]


def _across(prompt: int, room: int) -> tuple[Seq, ...]:
    """The end of a prompt, whole ones, and the begin of another, as long as that end."""
    whole = max(0, room // prompt - 1)
    cut = room - whole * prompt
    end, begin = cut - cut // 2, cut // 2
    return tuple(s for s in (Seq(end, prompt - end, 1), Seq(prompt, 0, whole), Seq(begin, 0, 1)) if s.new and s.count)
