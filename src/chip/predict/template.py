"""A program as it is asked for: each operator once, and where its answer goes.

A program is lowered once, for one token: every operator but attention grows with the tokens along one axis, so that a
step of n tokens needs no lowering of its own. Attention is asked for a step's sequences: those of a single new token,
and prompts. Prompts and chunks of prompts share a launch, which takes as long as one of sequences that are all alike
and have as much work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from chip.engines.context import decode_contexts
from chip.predict.limits import Answer, added
from chip.predict.phase import ATTENTION, CallBlock, Rows
from chip.timeline import RoleLaunches
from chip.types import Seq, Step

EXPERTS = frozenset({"moe_experts", "moe_experts_composed", "scaled_experts", "packed_experts"})
REMEMBERED = 64  # sizes of steps, so that a sweep of any length runs in bounded memory
Ask = Callable[[Any], Answer]
Answers = list[list[Answer]]  # of each block


class TimedCall(NamedTuple):
    """One call of a block: how it is answered for tokens, or, where it attends, for sequences."""

    role: str
    kind: str
    kernels: int
    attends: bool
    ask: Ask


class TemplateBlock(NamedTuple):
    repeat: int
    calls: CallBlock
    attends: Sequence[tuple[int, Ask]]  # where among the calls
    places: Sequence[int]  # of the answers to all others, among those to all of the program


class Template:
    def __init__(self, blocks: Sequence[tuple[int, Sequence[TimedCall]]]) -> None:
        """Norms, additions and halves of a gate are alike: they are asked for once."""
        asks: dict[tuple[Ask, bool], int] = {}
        self.blocks = []
        for repeat, calls in blocks:
            keys = [(c.ask, c.kind in EXPERTS) for c in calls if not c.attends]
            roles, kinds, kernels, _, _ = zip(*calls)
            named = CallBlock(kinds, RoleLaunches(roles, kernels), kinds.count(ATTENTION))
            attends = [(i, c.ask) for i, c in enumerate(calls) if c.attends]
            self.blocks.append(TemplateBlock(repeat, named, attends, [asks.setdefault(k, len(asks)) for k in keys]))
        # of its parts, not of this object: what refers to itself waits for a collection of garbage to be freed
        self._answers = lru_cache(maxsize=REMEMBERED)(partial(_answers, list(asks), [b.places for b in self.blocks]))

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


def _answers(asks: Sequence[tuple[Ask, bool]], blocks: Sequence[Sequence[int]], tokens: int, routed: int) -> Answers:
    """Of each block, but for what attends."""
    found = [ask(routed if of_experts else tokens) for ask, of_experts in asks]
    return [[found[i] for i in places] for places in blocks]
