"""A program as it is asked for: each operator once, and where its answer goes.

A program is lowered once, for one token: every operator but attention grows with the tokens along one axis, so that a
step of n tokens needs no lowering of its own. Attention is asked for a step's sequences: those of a single new token,
and prompts. Prompts and chunks of prompts share a launch, which takes as long as one of sequences that are all alike
and have as much work. Shared experts may run beside the routed ones, on a stream of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

from chip.engines.context import decode_contexts
from chip.predict.limits import Answer, added
from chip.predict.phase import CallBlock, Rows
from chip.timeline import RoleLaunches
from chip.types import Seq, Step

REMEMBERED = 64  # sizes of steps, so that a sweep of any length runs in bounded memory
Ask = Callable[[Any], Answer]
Answers = list[list[Answer]]  # of each block
Streams = tuple[list[int], list[int]]  # places of calls
Placed = tuple[Sequence[int], Streams]
ROUTED, SHARED, BOTH = ("router", "experts"), "shared_", "shared_add"  # roles


class TimedCall(NamedTuple):
    """One call of a block: how it is answered for tokens, or, where it attends, for sequences."""

    role: str
    kind: str
    kernels: int
    attends: bool
    routed: bool  # by the tokens that choose experts of their own
    ask: Ask


class TemplateBlock(NamedTuple):
    repeat: int
    calls: CallBlock
    attends: Sequence[tuple[int, Ask]]  # where among the calls
    places: Sequence[int]  # of the answers to all others, among those to all of the program


class Beside(NamedTuple):
    """Shared experts on a stream of their own, in steps of so many tokens at the most."""

    tokens: int
    bytes_per_s: float  # of the memory that both streams share


class Template:
    def __init__(self, blocks: Sequence[tuple[int, Sequence[TimedCall]]], beside: Beside) -> None:
        """Norms, additions and halves of a gate are alike: they are asked for once."""
        asks: dict[tuple[Ask, bool], int] = {}
        self.blocks = []
        streams = [_streams([c.role for c in calls if not c.attends]) for _, calls in blocks]
        for repeat, calls in blocks:
            keys = [(c.ask, c.routed) for c in calls if not c.attends]
            roles, kinds, kernels, *_ = zip(*calls)
            named = CallBlock(kinds, RoleLaunches(roles, kernels))
            attends = [(i, c.ask) for i, c in enumerate(calls) if c.attends]
            self.blocks.append(TemplateBlock(repeat, named, attends, [asks.setdefault(k, len(asks)) for k in keys]))
        # of its parts, not of this object: what refers to itself waits for a collection of garbage to be freed
        placed = [(b.places, s) for b, s in zip(self.blocks, streams)]
        self._answers = lru_cache(maxsize=REMEMBERED)(partial(_answers, list(asks), placed, beside))

    def rows(self, tokens: int, routed: int, seqs: Sequence[tuple[Seq, float]]) -> Rows:
        """All operators of a step of so many tokens, in order. `routed`: tokens that choose experts. `seqs`: what
        attends, and by what its time counts."""
        found: Rows = []
        for (repeat, calls, attends, _), known in zip(self.blocks, self._answers(tokens, routed)):
            if attends:
                known = known.copy()
                for at, ask in attends:
                    known.insert(at, added([(ask(seq), part) for seq, part in seqs]))
            found.append((repeat, calls, known))
        return found


def attending(step: Step, bends: Collection[int] = ()) -> list[tuple[Seq, float]]:
    """What attention is asked for, and by what its time counts: single tokens as they are, at a few contexts where a
    step stands for several; prompts as sequences like those that have most of the work. `bends`: contexts from which on
    attention grows otherwise."""
    if step.steps > 1:
        (seq,) = step.seqs
        at = decode_contexts(seq.past, step.steps, bends)
        return [(Seq(1, past, seq.count, seq.slots), part) for past, part in at]
    prompts = [s for s in step.seqs if s.new > 1]
    if len(prompts) < 2:
        return [(s, 1.0) for s in step.seqs]
    most, total = max(prompts, key=_pairs), sum(map(_pairs, prompts))
    one = _pairs(most) / most.count
    count = most.count if most.past else round(total / one)  # of whole prompts as many as it takes
    like = Seq(most.new, most.past, count, most.slots)
    return [*((s, 1.0) for s in step.seqs if s.new == 1), (like, total / (one * count))]


def _pairs(seq: Seq) -> int:
    """Twice the queries times the keys that they meet."""
    return seq.count * seq.new * (2 * seq.past + seq.new + 1)


def _answers(
    asks: Sequence[tuple[Ask, bool]], blocks: Sequence[Placed], beside: Beside, tokens: int, routed: int
) -> Answers:
    """Of each block, but for what attends."""
    found = [ask(routed if of_experts else tokens) for ask, of_experts in asks]
    answers = [[found[i] for i in places] for places, _ in blocks]
    if tokens <= beside.tokens:
        for known, (_, streams) in zip(answers, blocks):
            if all(streams):
                _run_at_once(known, streams, beside.bytes_per_s)
    return answers


def _streams(roles: Sequence[str]) -> Streams:
    """Where among the calls of a block routed and shared experts are. What adds their results waits for both."""
    routed = [i for i, role in enumerate(roles) if role in ROUTED]
    return routed, [i for i, role in enumerate(roles) if role.startswith(SHARED) and role != BOTH]


def _run_at_once(answers: list[Answer], streams: Streams, bytes_per_s: float) -> None:
    """Two streams take as long as the longer, and as memory takes for what both move. Each call has what memory takes
    for it, and its share of the rest."""
    each_s = [sum([answers[i][0] for i in stream]) for stream in streams]
    least_s = {i: min(answers[i][0], answers[i][6] / bytes_per_s) for i in chain(*streams)}
    alone_s, moving_s = sum(each_s), sum(least_s.values())
    rest = (max(*each_s, moving_s) - moving_s) / (alone_s - moving_s) if alone_s > moving_s else 0.0
    for i, least in least_s.items():
        seconds, low_s, high_s, bound, source, flops, moved, held_s = answers[i]
        part = (least + rest * (seconds - least)) / seconds
        answers[i] = seconds * part, low_s * part, high_s * part, bound, source, flops, moved, held_s * part
