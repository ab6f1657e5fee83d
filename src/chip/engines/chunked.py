"""A scheduler with chunked prefill. Each step has a budget of tokens: running requests get theirs first, then waiting
prompts in order, cut where the budget ends.

vLLM and our own engine both schedule so. They differ in the budget, and in what makes a step a CUDA graph.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import ceil, floor, sqrt

from chip.engines.timeline import Weighted
from chip.types import Scenario, Seq, Step

# The first steps of a prefill are walked one by one, at most so many and at least so many; the rest is integrated. A
# longer prefill has fewer walked steps.
EXACT_STEPS, LEAST_STEPS = 64, 16
# Of more requests than run at once: waves that are walked, and the most steps of prompts in each.
WALKED_WAVES, MOST_WALKED = 3, 128
WHOLE = 1e-6  # rounding: how far sums of steps or tokens may be off a whole number
seq_of = partial(tuple.__new__, Seq)  # from a tuple of all fields: twice as fast as Seq(...)
MakeStep = Callable[[tuple[Seq, ...]], Step]


def prefill_steps(scenario: Scenario, budget: int, most: int, step: MakeStep) -> Weighted:
    """Steps until every request has its first token. `most` requests run at once; each that ends makes room for one
    that waits."""
    prompts_a_step = budget / scenario.prompt
    if scenario.batch <= most or (scenario.output + 1) * prompts_a_step < most:  # those that run end as others come
        return wave(scenario, budget, step)
    if most > prompts_a_step * MOST_WALKED:
        return _one_after_another(scenario, budget, most, step)
    skipped = max(0, -(-scenario.batch // most) - WALKED_WAVES) * most
    walked = list(_in_turn(replace(scenario, batch=scenario.batch - skipped), budget, most, step))
    if not skipped:
        return tuple((made, weight) for made, weight, _, _ in walked)
    # the steps in the middle stand for those of requests that are not walked
    middle = range(most, 2 * most)
    more = skipped * scenario.prompt / sum(tokens for _, _, begun, tokens in walked if begun in middle)
    return tuple((made, weight * (1 + more if begun in middle else 1)) for made, weight, begun, _ in walked)


def _one_after_another(scenario: Scenario, budget: int, most: int, step: MakeStep) -> Weighted:
    """Waves of as many requests as run at once, each from its first prompt to its last token."""
    before = (scenario.batch - 1) // most
    full = replace(scenario, batch=most)
    steps = [(made, weight * before) for made, weight in wave(full, budget, step)]
    steps.append((decode_step(full, most, step), float(before * (scenario.output - 1))))
    return (*steps, *wave(replace(scenario, batch=scenario.batch - before * most), budget, step))


def _in_turn(scenario: Scenario, budget: int, most: int, step: MakeStep) -> Iterator[tuple[Step, float, int, int]]:
    """The steps of more requests than run at once, how many each stands for, how many requests had begun before, and
    the prompt tokens of each."""
    prompt, output = scenario.prompt, scenario.output
    total, at, now = scenario.batch * prompt, 0, 0  # prompt tokens of all, those that are computed, steps
    groups: deque[list[int]] = deque()  # requests that decode, and the step that gave them their first token
    while at < total:
        while groups and now - groups[0][1] >= output:
            groups.popleft()
        decoding = sum(n for n, _ in groups)
        begun = -(-at // prompt)
        places = most - decoding - (begun - at // prompt)
        end = min(at + budget - decoding, (begun + places) * prompt, total)
        past = prompt + round(sum(n * (now - since - 1) for n, since in groups) / decoding) if decoding else prompt
        if end > at:
            first, *others = _seqs(prompt, decoding, at, end)
            yield step((first._replace(past=past) if decoding else first, *others)), 1.0, begun, end - at
            if done := end // prompt - at // prompt:
                groups.append([done, now])
            at, now = end, now + 1
        else:  # until the next one ends
            count = groups[0][1] + output - now
            yield step((Seq(1, past, decoding),))._replace(steps=count), float(count), begun, 0
            now += count


def padded(tokens: int, sizes: Sequence[int]) -> int:
    """The smallest CUDA graph that so many tokens fit in; the tokens themselves where they are too many for any."""
    at = bisect_left(sizes, tokens)
    return sizes[at] if at < len(sizes) else tokens


def decode_step(scenario: Scenario, most: int, step: MakeStep) -> Step:
    """The first decode step of the requests that run at once."""
    made = step((Seq(1, scenario.prompt, min(scenario.batch, most)),))
    return made._replace(steps=scenario.decode_steps)


def wave(scenario: Scenario, budget: int, step: MakeStep) -> Weighted:
    """Steps until all of these requests have their first tokens; those that have it decode along in the later steps.

    The first steps are as the scheduler makes them. The integrated ones go on from there, so that both meet.
    """
    total = scenario.batch * scenario.prompt
    walked = max(LEAST_STEPS, 2 * EXACT_STEPS - total // budget)
    chunks, done = _chunks(scenario, budget, min(walked, EXACT_STEPS))
    rest = _long_prefill(scenario, budget, step, done) if done < total else ()
    return (*((step(seqs), 1.0) for seqs in chunks), *rest)


def _chunks(scenario: Scenario, budget: int, most: int) -> tuple[list[tuple[Seq, ...]], int]:
    """The sequences of the first steps, as the scheduler makes them, and how many prompt tokens they compute."""
    prompt, total = scenario.prompt, scenario.batch * scenario.prompt
    steps: list[tuple[Seq, ...]] = []
    done = [0]  # prompts, after each step
    at = 0
    while at < total and len(steps) < most:
        answered = done[-scenario.output] if len(done) >= scenario.output else 0  # have all of their tokens
        decoding = done[-1] - answered
        end = min(at + budget - decoding, total)
        steps.append(_seqs(prompt, decoding, at, end))
        at = end
        done.append(at // prompt)
    return steps, at


def _seqs(prompt: int, decoding: int, at: int, end: int) -> tuple[Seq, ...]:
    """A step with the tokens from `at` to `end` of all prompts one after another, beside requests that decode: the end
    of one prompt, whole prompts, and the beginning of another."""
    computed = at % prompt
    first = min(prompt - computed, end - at) if computed else 0  # tokens of a prompt that was begun before
    whole, last = divmod(end - at - first, prompt)
    seqs = [seq_of((1, prompt, decoding, 0))] if decoding else []
    if first:
        seqs.append(seq_of((first, computed, 1, 0)))
    if whole:
        seqs.append(seq_of((prompt, 0, whole, 0)))
    if last:
        seqs.append(seq_of((last, 0, 1, 0)))
    return tuple(seqs)


def _long_prefill(scenario: Scenario, budget: int, step: MakeStep, done: int) -> Weighted:
    """The rest of a prefill, after so many prompt tokens, as a few full steps, weighted to make up all of it, and one
    last step with what is left.

    The full steps differ in how many requests decode along and in how deep into a prompt they are. The last one counts
    by itself since it reads all weights once more.
    """
    prompt = scenario.prompt
    running, partial = divmod(done, prompt)
    most = (scenario.output - 1) * budget // prompt  # that decode at once: those done earlier have all of their tokens
    spans: list[tuple[int, float, int]] = []  # requests that decode, tokens, and where in a prompt those begin
    if partial:
        spans.append((min(running, most), prompt - partial, partial))
    if whole := scenario.batch - running - len(spans):
        mixes = decode_contexts(running + len(spans), whole)
        spans += [(min(decoding, most), share * whole * prompt, 0) for decoding, share in mixes]
    total = sum([tokens for _, tokens, _ in spans])
    steps = sum([tokens / (budget - decoding) for decoding, tokens, _ in spans])
    decoding, _, begun = spans[-1]
    rest = min(ceil(total * (1 - floor(steps + WHOLE) / steps) - WHOLE), budget - decoding)
    found: list[tuple[Step, float]] = []
    for along, tokens, at in spans if rest < total else ():
        room = budget - along
        found += _steps_of(step, prompt, along, room, (1 - rest / total) * tokens / room, at)
    if rest > 0:
        found += _steps_of(step, prompt, decoding, rest, 1.0, begun, once=True)
    return tuple(found)


def _steps_of(
    step: MakeStep, prompt: int, decoding: int, room: int, weight: float, begun: int, once: bool = False
) -> list[tuple[Step, float]]:
    """`weight` steps with `room` prompt tokens each, beside sequences that decode: what such steps hold on average.

    A step holds a chunk from within a prompt, taken at a few depths, or only at the middle one if the step is there
    `once`. Or a prompt ends in it, and the next one begins with as many tokens. Both tokens and attended pairs come out
    exact. `begun`: the tokens of the first prompt that are computed already.
    """
    alone = begun and prompt - begun >= room
    ending = 0.0 if alone else min(1.0, room / prompt)
    starts: list[tuple[int, float]] = []  # where in a prompt a step begins, and the share of such steps
    if ending:
        cut = room - max(0, room // prompt - 1) * prompt  # tokens that are not of whole prompts
        starts.append((prompt - (cut - cut // 2), ending))
    if ending < 1:
        first, last = begun if alone else 0, prompt - room
        depths = [((first + last) // 2, 1.0)] if once else decode_contexts(first, last - first + 1)
        starts += [(past, part * (1 - ending)) for past, part in depths]
    return [(step(_seqs(prompt, decoding, at, at + room)), weight * part) for at, part in starts]


def decode_contexts(first: int, steps: int, bends: Collection[int] = ()) -> list[tuple[int, float]]:
    """(past tokens, weight) whose weighted mean stands for `steps` steps from `first` past tokens on; weights sum to 1.

    `bends` are contexts from which on a step's time grows in another way, such as a sliding window. Between two of them
    the points are the mean context plus and minus the standard deviation (Gauss's rule): exact where time is linear in
    the context, nearly so where it bends evenly. The mean is monotone in both arguments if that time is.
    """
    edges = [first, *sorted([b for b in bends if first < b < first + steps]), first + max(1, steps)]
    found: list[tuple[int, float]] = []
    for begin, end in pairwise(edges):
        count, last = end - begin, end - 1
        part = count / (edges[-1] - first)
        if count == 1:
            found.append((begin, part))
        else:
            inside = round((count - 1) / 2 - sqrt((count * count - 1) / 12))
            found += [(begin + inside, part / 2), (last - inside, part / 2)]
    return found
