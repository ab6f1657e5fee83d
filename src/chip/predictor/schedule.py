"""The steps of a batch as its engine schedules them, and the sequences that attention is timed for.

A few sequences stand for those of many steps.

Single new tokens are taken as they are, and all prompts and chunks together, since they share one launch: it is timed
as one of equal sequences with as much work. Steps of a prefill that have as many tokens and follow each other are timed
as one, for their mean.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from chip import engines
from chip.engines import Engine
from chip.engines.timeline import Weighted
from chip.types import Scenario, Seq, Step

MOST_SCHEDULES = 64  # remembered
FEW_REQUESTS = 16  # below this a step of half a request more takes clearly longer
WeightedSeqs = list[tuple[Seq, float]]


class Schedule(NamedTuple):
    """The steps of a batch of equal requests."""

    prefill: Weighted  # until the last request has its first token
    decode: Weighted  # after that, by their share
    last: int  # decode steps at the end that are of fewer requests
    fewer: float  # of how many on average


@lru_cache(maxsize=MOST_SCHEDULES)
def schedule(engine: str, s: Scenario, options: Any) -> Schedule:
    """`options`: of the engine."""
    e = engines.get(engine)
    prefill = e.prefill(s, options)
    last, fewer = _ending(prefill, s)
    return Schedule(prefill, _decode(e, s, options, last, fewer), last, fewer)


def _decode(e: Engine, s: Scenario, options: Any, last: int, fewer: float) -> Weighted:
    """A broken number of requests at the end is that of the whole numbers below and above it."""
    steps = s.output - 1
    if not last:
        return ((e.decode(s, options), 1.0),)
    weighted: list[tuple[Step, float]] = []
    if last < steps:
        full = e.decode(replace(s, output=s.output - last), options)
        weighted.append((full, (steps - last) / steps))
    low = int(fewer)
    parts = ((low, 1 - (fewer - low)), (low + 1, fewer - low)) if fewer < FEW_REQUESTS else ((round(fewer), 1.0),)
    for requests, part in parts:
        if part:
            ends = replace(s, batch=requests, prompt=s.prompt + steps - last, output=1 + last)
            weighted.append((e.decode(ends, options), last * part / steps))
    return tuple(weighted)


def _ending(prefill: Weighted, s: Scenario) -> tuple[int, float]:
    """How many of the last decode steps are of fewer requests, and of how many on average; (0, 0) where none are.
    Requests with an early first token decode while others prefill, and end as many steps before these."""
    if s.batch == 1 or s.output < 2 or len(prefill) == 1:
        return 0, 0.0
    left, early, gone = float(s.output - 1), float(s.batch * s.prompt), 0.0
    for step, weight in reversed(prefill):
        # n steps before the last one as many end as have their first token n steps before the prefill's last
        decoding = step.seqs[0].count if step.seqs[0].past >= s.prompt else 0
        early -= (step.tokens - step.pad_tokens - decoding) * weight
        requests, count = max(0, round(early)) // s.prompt, min(weight, left)
        gone, left = gone + requests * count, left - count
        if not requests or not left:
            break
    last = s.output - 1 - round(left) if gone else 0
    return (last, max(1.0, s.batch - gone / last)) if last else (0, 0.0)


class StepGroup(NamedTuple):
    """Steps that are timed as one: alike but for the sequences that attention sees."""

    step: Step  # one of them
    weight: float  # how many steps of the schedule they are
    attending: Sequence[tuple[Seq, float]]  # what attention is timed for in a mean step
    rows: int  # sequences of a mean step
    tokens: int  # of each
    early: float  # requests that decode beside prompts in a mean step


def runs_of(steps: Weighted, prompt: int = 0, bends: Collection[int] = ()) -> list[StepGroup]:
    """`prompt`: tokens of each request, where the steps are a prefill. `bends`: see `attending`."""
    if not prompt:
        return [StepGroup(step, weight, attending(step, bends), step.rows, step.tokens, 0.0) for step, weight in steps]
    groups: list[list[tuple[Step, float]]] = []
    sizes: list[int] = []
    latest: tuple[Any, ...] = ()
    for step, weight in steps:
        seqs, pad_tokens, graph, *_ = step
        tokens = step.tokens
        alike = tokens, pad_tokens, graph, seqs if seqs[-1].new == 1 and step.decode else ()
        if alike == latest:
            groups[-1].append((step, weight))
        else:
            groups.append([(step, weight)])
            sizes.append(tokens)
            latest = alike
    return [_mean(group, tokens, prompt, bends) for group, tokens in zip(groups, sizes)]


def attending(step: Step, bends: Collection[int] = ()) -> WeightedSeqs:
    """The sequences that attention is timed for, with weights. A step that stands for several decode steps is timed at
    their mean context, or between any two `bends` at the mean there: contexts at which attention's growth changes, such
    as a window's length."""
    if step.steps > 1:
        (seq,) = step.seqs
        first, after = seq.past, seq.past + step.steps
        edges = [first, *sorted([bend for bend in bends if first < bend < after]), after]
        return [
            (Seq(1, (begin + end) // 2, seq.count, seq.slots), (end - begin) / step.steps)
            for begin, end in pairwise(edges)
        ]
    singles = [(seq, 1.0) for seq in step.seqs if seq.new == 1]
    prompts = [seq for seq in step.seqs if seq.new > 1]
    if not prompts:
        return singles
    return [*singles, _equal_prompts(max(prompts, key=_work), sum(map(_work, prompts)))]


def _equal_prompts(like: Seq, work: float) -> tuple[Seq, float]:
    """Equal prompts, or chunks of prompts, that give so much work in one launch."""
    one = _work(like) / like.count
    count = like.count if like.past else max(1, round(work / one))  # whole prompts: as many as give the work
    return Seq(like.new, like.past, count, like.slots), work / (one * count)


def _work(seq: Seq) -> int:
    """Twice the pairs of query and visible key."""
    new, past, count, _ = seq
    return count * new * (2 * past + new + 1)


def _mean(group: Sequence[tuple[Step, float]], tokens: int, prompt: int, bends: Collection[int]) -> StepGroup:
    """Of steps with so many tokens. Requests that decode beside prompts, since they have their first token, are as many
    as on average, at their mean context."""
    step, total = group[len(group) // 2][0], sum([weight for _, weight in group])
    if len(group) == 1:
        first = step.seqs[0]
        decoding = first.count if first.new == 1 and first.past >= prompt else 0
        return StepGroup(step, total, attending(step, bends), step.rows, tokens, decoding)
    seqs: WeightedSeqs = []
    main: list[tuple[int, Seq]] = []  # the sequence of each step with most work
    work = early = beside = past = rows = 0.0
    for each, weight in group:
        most, longest = 0, each.seqs[0]
        for seq in each.seqs:
            rows += weight * seq.count
            if seq.new > 1:
                own = _work(seq)
                work += weight * own
                most, longest = (own, seq) if own > most else (most, longest)
            elif seq.past >= prompt and seq is each.seqs[0]:
                early += weight * seq.count
                past += weight * seq.count * seq.past
                beside += weight
            else:
                seqs.append((seq, weight / total))
        if most:
            main.append((most, longest))
    if main:
        main.sort()
        seqs.append(_equal_prompts(main[len(main) // 2][1], work / total))
    if early:
        seqs.append((Seq(1, round(past / early), max(1, round(early / beside))), beside / total))
    return StepGroup(step, total, seqs, max(1, round(rows / total)), tokens, early / total)
