"""The operators of a program, lowered once and answered for steps of any size.

A program is lowered for one token. Every operator but attention grows with the tokens along one axis, so a step of n
tokens needs no lowering of its own. Attention is answered for the sequences of a step: single new tokens as they are,
and all prompts and chunks together, since they share one launch. That launch is timed as one of equal sequences with as
much work. Shared experts may run beside the routed ones, on a second stream.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from chip.engines.context import decode_contexts
from chip.predict.limits import Answer, added, scaled
from chip.predict.phase import CallBlock, Rows
from chip.timeline import RoleLaunches
from chip.types import Seq, Step

REMEMBERED = 64  # step sizes, so that a sweep of any length runs in bounded memory
MANY_STEPS = 32  # kernels take keys in blocks: contexts of so many steps are asked for half by half
ROUTED_ROLES, SHARED_PREFIX, JOIN_ROLE = ("router", "experts"), "shared_", "shared_add"
Ask = Callable[[Any], Answer]  # from a number of tokens or, for attention, from a sequence


class TimedCall(NamedTuple):
    """An operator of a block, and the function that answers for it."""

    role: str
    kind: str
    kernels: int
    attends: bool
    routed: bool  # grows with the tokens that choose experts, which padding does not
    flop_per_s: float  # at most
    ask: Ask


Place = tuple[int, float]  # of a call among those that do not attend, and the FLOP/s that it has at most


class TemplateBlock(NamedTuple):
    repeat: int
    calls: CallBlock
    attention: Sequence[tuple[int, Ask]]  # its places among the calls
    others: Sequence[int]  # for every other call: the index of its question among those of the template
    routed: Sequence[Place]  # routed experts
    shared: Sequence[Place]  # shared experts


class SecondStream(NamedTuple):
    """The stream that shared experts run on."""

    most_tokens: int  # of a step that uses it
    bytes_per_s: float  # of the memory that both streams share


class Template:
    def __init__(self, blocks: Sequence[tuple[int, Sequence[TimedCall]]], second: SecondStream) -> None:
        """Operators that are alike (norms, additions) are asked for once."""
        questions: dict[tuple[Ask, bool], int] = {}
        self.blocks = []
        for repeat, calls in blocks:
            roles, kinds, kernels, *_ = zip(*calls)
            others = [c for c in calls if not c.attends]
            block = TemplateBlock(
                repeat,
                CallBlock(kinds, RoleLaunches(roles, kernels)),
                [(i, c.ask) for i, c in enumerate(calls) if c.attends],
                [questions.setdefault((c.ask, c.routed), len(questions)) for c in others],
                [(i, c.flop_per_s) for i, c in enumerate(others) if c.role in ROUTED_ROLES],
                [
                    (i, c.flop_per_s)
                    for i, c in enumerate(others)
                    if c.role.startswith(SHARED_PREFIX) and c.role != JOIN_ROLE
                ],
            )
            self.blocks.append(block)
        # Bound to a function, not to a method: an object that holds its own method is a reference cycle, which only the
        # garbage collector frees.
        self._answers = lru_cache(maxsize=REMEMBERED)(partial(_answers, list(questions), self.blocks, second))

    def rows(self, tokens: int, routed: int, seqs: Sequence[tuple[Seq, float]]) -> Rows:
        """All operators of a step of so many tokens, in order. `routed`: the tokens that choose experts. `seqs`: what
        attention is asked for, with weights."""
        found: Rows = []
        for block, answers in zip(self.blocks, self._answers(tokens, routed)):
            if block.attention:
                answers = answers.copy()
                for place, ask in block.attention:
                    answers.insert(place, added([(ask(seq), weight) for seq, weight in seqs]))
            found.append((block.repeat, block.calls, answers))
        return found

    def attention(self, seqs: Sequence[tuple[Seq, float]]) -> list[tuple[int, Answer]]:
        """Of these sequences, with how often a step runs it."""
        asks = [(block.repeat, ask) for block in self.blocks for _, ask in block.attention]
        return [(repeat, added([(ask(seq), weight) for seq, weight in seqs])) for repeat, ask in asks]


def attending(step: Step, bends: Collection[int] = ()) -> list[tuple[Seq, float]]:
    """The sequences that attention is asked for, with the weight of each answer. A step that stands for several decode
    steps is asked for at a few contexts. Prompts are asked for as equal sequences, each like the one with most work.
    `bends`: contexts at which attention's growth changes, such as a window's length."""
    if step.steps > 1:
        (seq,) = step.seqs
        halves = {seq.past + step.steps // 2} if step.steps >= MANY_STEPS else ()
        contexts = decode_contexts(seq.past, step.steps, {*bends, *halves})
        return [(Seq(1, past, seq.count, seq.slots), weight) for past, weight in contexts]
    prompts = [s for s in step.seqs if s.new > 1]
    if len(prompts) < 2:
        return [(s, 1.0) for s in step.seqs]
    most, total = max(prompts, key=_work), sum(map(_work, prompts))
    one = _work(most) / most.count
    count = most.count if most.past else round(total / one)  # whole prompts: as many as give the total work
    like = Seq(most.new, most.past, count, most.slots)
    return [*((s, 1.0) for s in step.seqs if s.new == 1), (like, total / (one * count))]


def _work(seq: Seq) -> int:
    """Twice the pairs of query and visible key."""
    return seq.count * seq.new * (2 * seq.past + seq.new + 1)


def _answers(
    questions: Sequence[tuple[Ask, bool]], blocks: Sequence[TemplateBlock], second: SecondStream, tokens: int,
    routed: int,
) -> list[list[Answer]]:  # fmt: skip
    """For each block, the answers of its operators but attention."""
    found = [ask(routed if of_experts else tokens) for ask, of_experts in questions]
    answers = [[found[i] for i in block.others] for block in blocks]
    if tokens <= second.most_tokens:
        for block, own in zip(blocks, answers):
            if block.routed and block.shared:
                _run_at_once(own, block.routed, block.shared, second.bytes_per_s)
    return answers


def _run_at_once(answers: list[Answer], routed: Sequence[Place], shared: Sequence[Place], bytes_per_s: float) -> None:
    """Shortens the answers of two streams: together they take as long as the longer one, and no less than memory takes
    for what both move, or the SMs for what arithmetic binds. Each call keeps that time and a share of the rest."""
    streams_s = [sum([answers[i][0] for i, _ in stream]) for stream in (routed, shared)]
    busy_s = {
        i: seconds if bound == "compute" else min(seconds, max(moved / bytes_per_s, flops / flop_per_s))
        for i, flop_per_s in (*routed, *shared)
        for seconds, _, _, bound, _, flops, moved, _, _ in (answers[i],)
    }
    total_s, least_s = sum(streams_s), sum(busy_s.values())
    rest = (max(*streams_s, least_s) - least_s) / (total_s - least_s) if total_s > least_s else 0.0
    for i, own_s in busy_s.items():
        seconds = answers[i][0]
        answers[i] = scaled(answers[i], (own_s + rest * (seconds - own_s)) / seconds)
