"""The sequences that attention is timed for: a few that stand for those of many steps.

Single new tokens are taken as they are, and all prompts and chunks together, since they share one launch: it is timed
as one of equal sequences with as much work. Steps of a prefill that have as many tokens and follow each other are timed
as one, for their mean.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from chip.engines.chunked import decode_contexts
from chip.engines.timeline import Weighted
from chip.types import Seq, Step

FEW_STEPS = 16  # decode steps that are timed at one context


class StepGroup(NamedTuple):
    """Steps that are timed as one: alike but for the sequences that attention sees."""

    step: Step  # one of them
    weight: float  # how many steps of the schedule they are
    attending: Sequence[tuple[Seq, float]]  # what attention is timed for in a mean step
    rows: int  # sequences of a mean step
    early: float  # requests that decode beside prompts in a mean step


def runs_of(steps: Weighted, prompt: int = 0, bends: Collection[int] = ()) -> list[StepGroup]:
    """`prompt`: tokens of each request, where the steps are a prefill. `bends`: see `attending`."""
    if not prompt:
        return [StepGroup(step, weight, attending(step, bends), step.rows, 0.0) for step, weight in steps]
    counts = [step.seqs[0].count for step, _ in steps if _early(step, prompt)]
    fewest, most = min(counts, default=0), max(counts, default=0)
    return [_run(list(group), prompt, fewest, most, bends) for _, group in groupby(steps, _key)]


def attending(step: Step, bends: Collection[int] = ()) -> list[tuple[Seq, float]]:
    """The sequences that attention is timed for, with weights. A step that stands for several decode steps is timed at
    a few contexts. Prompts share one launch, which is timed as one of equal sequences with as much work. `bends`:
    contexts at which attention's growth changes, such as a window's length."""
    if step.steps > 1:
        (seq,) = step.seqs
        if step.steps <= FEW_STEPS and not any(seq.past < b < seq.past + step.steps for b in bends):
            return [(Seq(1, seq.past + step.steps // 2, seq.count, seq.slots), 1.0)]
        contexts = decode_contexts(seq.past, step.steps, bends)
        return [(Seq(1, past, seq.count, seq.slots), weight) for past, weight in contexts]
    return [*((s, 1.0) for s in step.seqs if s.new == 1), *_equal_prompts([(step, 1.0)])]


def _equal_prompts(group: Sequence[tuple[Step, float]]) -> list[tuple[Seq, float]]:
    """Equal prompts, each like the one with most work, that stand for those of a mean step."""
    total, main = 0.0, []
    for step, weight in group:
        work = [(_work(s), s) for s in step.seqs if s.new > 1]
        if work:
            main.append(max(work, key=itemgetter(0)))
            total += weight * sum([w for w, _ in work])
    if not main:
        return []
    total /= sum([weight for _, weight in group])
    main.sort(key=itemgetter(0))
    work_of_all, like = main[len(main) // 2]
    one = work_of_all / like.count
    count = like.count if like.past else max(1, round(total / one))  # whole prompts: as many as give the total work
    return [(Seq(like.new, like.past, count, like.slots), total / (one * count))]


def _work(seq: Seq) -> int:
    """Twice the pairs of query and visible key."""
    return seq.count * seq.new * (2 * seq.past + seq.new + 1)


def _key(item: tuple[Step, float]) -> tuple[Any, ...]:
    step, _ = item
    return step.tokens, step.pad_tokens, step.graph, step.seqs if step.decode else ()


def _early(step: Step, prompt: int) -> int:
    """Requests that decode beside prompts, since they have their first token."""
    first = step.seqs[0]
    return first.count if first.new == 1 and first.past >= prompt else 0


def _run(group: Sequence[tuple[Step, float]], prompt: int, fewest: int, most: int, bends: Collection[int]) -> StepGroup:
    """`fewest`, `most`: requests that decode beside the prompts of a step; between them attention is linear."""
    step, _ = group[len(group) // 2]
    if len(group) == 1:
        return StepGroup(step, group[0][1], attending(step, bends), step.rows, _early(step, prompt))
    total = sum([weight for _, weight in group])
    seqs = _equal_prompts(group)
    early = rows = past = beside = 0.0
    for each, weight in group:
        count = _early(each, prompt)
        early += weight * count
        past += weight * count * each.seqs[0].past
        beside += weight if count else 0.0
        rows += weight * each.rows
        seqs += [(s, weight / total) for s in each.seqs[1 if count else 0 :] if s.new == 1]
    if early:
        share = (early / beside - fewest) / (most - fewest) if most > fewest else 0.0
        of_past = round(past / early)
        seqs += [
            (Seq(1, of_past, count), part * beside / total)
            for count, part in ((fewest, 1 - share), (most, share))
            if part
        ]
    return StepGroup(step, total, seqs, max(1, round(rows / total)), early / total)
