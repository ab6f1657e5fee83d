"""A program as it is asked for: each operator once, and where its answer goes.

A program is lowered once, for one token: every operator but attention grows with the tokens along one axis, so that a
step of n tokens needs no lowering of its own. Attention is asked for a step's sequences: those of a single new token,
and prompts. Prompts and chunks of prompts share a launch, which takes as long as one of sequences that are all alike
and have as much work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from chip.predict.limits import Answer
from chip.predict.phase import ATTENTION, CallBlock, Rows
from chip.timeline import RoleLaunches
from chip.types import Seq

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


class TemplateBlock:
    __slots__ = ("_by_seqs", "_calls", "attends", "places", "repeat")

    def __init__(self, repeat: int, calls: Sequence[TimedCall], places: Sequence[int]) -> None:
        """`places` of the answers to all that does not attend, among those to all of the program."""
        self.repeat, self.places, self._calls = repeat, places, calls
        self.attends = [(i, c.ask) for i, c in enumerate(calls) if c.attends]
        self._by_seqs: dict[int, CallBlock] = {}

    def calls(self, seqs: int) -> CallBlock:
        """What is called where a step has so many groups of sequences: each has an answer of its own."""
        found = self._by_seqs.get(seqs)
        if found is None:
            if len(self._by_seqs) >= REMEMBERED:
                self._by_seqs.clear()
            each = [c for c in self._calls for _ in range(seqs if c.attends else 1)]
            roles, kinds, kernels, _, _ = zip(*each)
            together = None
            if seqs > 1 and self.attends:
                together = RoleLaunches(tuple(c.role for c in self._calls), tuple(c.kernels for c in self._calls))
            launches, attentions = RoleLaunches(roles, kernels), kinds.count(ATTENTION)
            found = self._by_seqs[seqs] = CallBlock(kinds, launches, together, attentions)
        return found


class Template:
    def __init__(self, blocks: Sequence[tuple[int, Sequence[TimedCall]]]) -> None:
        """Norms, additions and halves of a gate are alike: they are asked for once."""
        asks: dict[tuple[Ask, bool], int] = {}
        self.blocks = []
        for repeat, calls in blocks:
            keys = [(c.ask, c.kind in EXPERTS) for c in calls if not c.attends]
            self.blocks.append(TemplateBlock(repeat, calls, [asks.setdefault(key, len(asks)) for key in keys]))
        # of its parts, not of this object: what refers to itself waits for a collection of garbage to be freed
        self._answers = lru_cache(maxsize=REMEMBERED)(partial(_answers, list(asks), [b.places for b in self.blocks]))

    def rows(self, tokens: int, routed: int, seqs: Sequence[Seq]) -> Rows:
        """All operators of a step of so many tokens, in order. `routed`: tokens that choose experts."""
        found: Rows = []
        asked = attending(seqs)
        for block, known in zip(self.blocks, self._answers(tokens, routed)):
            if block.attends:
                known, more = known.copy(), len(asked) - 1
                for n, (at, ask) in enumerate(block.attends):
                    known[at + n * more : at + n * more] = [_part(ask(seq), part) for seq, part in asked]
            found.append((block.repeat, block.calls(len(asked)), known))
        return found


def attending(seqs: Sequence[Seq]) -> Sequence[tuple[Seq, float]]:
    """What attention is asked for, and by what its time counts: single tokens as they are, prompts as sequences like
    those that have most of the work."""
    prompts = [s for s in seqs if s.new > 1]
    if len(prompts) < 2:
        return [(s, 1.0) for s in seqs]
    most, total = max(prompts, key=_pairs), sum(map(_pairs, prompts))
    one = _pairs(most) / most.count
    count = most.count if most.past else round(total / one)  # of whole prompts as many as it takes
    like = Seq(most.new, most.past, count, most.slots)
    return [*((s, 1.0) for s in seqs if s.new == 1), (like, total / (one * count))]


def _pairs(seq: Seq) -> int:
    """Twice the queries times the keys that they meet."""
    return seq.count * seq.new * (2 * seq.past + seq.new + 1)


def _part(answer: Answer, part: float) -> Answer:
    if part == 1.0:
        return answer
    seconds, low_s, high_s, bound, source, flops, moved, held_s = answer
    return seconds * part, low_s * part, high_s * part, bound, source, flops * part, moved * part, held_s * part


def _answers(asks: Sequence[tuple[Ask, bool]], blocks: Sequence[Sequence[int]], tokens: int, routed: int) -> Answers:
    """Of each block, but for what attends."""
    found = [ask(routed if of_experts else tokens) for ask, of_experts in asks]
    return [[found[i] for i in places] for places in blocks]
