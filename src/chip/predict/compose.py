"""From operators to a step, from steps to a request. Operators of a step run one after another: their times add.

Intervals of roofline estimates share their cause (the same ceilings and factors), so they add linearly; learned
operators err each on its own, so theirs add as squares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import sqrt
from typing import NamedTuple, Protocol

from chip import engines
from chip.dtypes import Precision
from chip.engines.context import PANELS
from chip.models.decoder import Decoder
from chip.models.lower import body, head
from chip.ops import composed
from chip.ops.attention import Attention
from chip.ops.kv_roll import SlidingAppend
from chip.ops.masked_attention import MaskedAttention
from chip.ops.mla import Mla
from chip.predict.along import AlongTokens, Answer, OverSequences, answer
from chip.predict.experts import EXPERT_KINDS, ROUTER_KINDS
from chip.predict.overheads import SOURCE, Extra, Overheads, Work
from chip.predict.roof import Range
from chip.predict.roofline import Attentive
from chip.predict.settling import Settling
from chip.types import Cost, Estimate, Op, Program, Scenario

LEARNED = "interpolated"  # the source of what tables answer
REMEMBERED = 64  # sizes of steps, sequences of an attention: few, so that a sweep of any length runs in bounded memory


class Estimator(Protocol):
    """Answers for one operator, for one that grows with the tokens of a step, and for attention over sequences."""

    settling: Settling | None

    def __call__(self, op: Op) -> tuple[Estimate, Cost]: ...
    def along(self, op: Op) -> AlongTokens: ...
    def over(self, op: Attentive) -> OverSequences: ...


class Line(NamedTuple):
    """A row of the breakdown: all calls of one role in a phase."""

    role: str
    kind: str
    calls: float
    seconds: float
    low_s: float
    high_s: float
    bound: str
    source: str
    flops: float
    bytes: float


MATMULS = frozenset((*composed.KINDS, *EXPERT_KINDS, *ROUTER_KINDS)) | {
    "linear", "bmm", "attention", "masked_attention", "growing_attention", "mla", "scaled_linear", "packed_linear",
    "scaled_experts", "packed_experts", "fp8_attention", "fp8_cache_attention",
}  # fmt: skip


# Largest ratio between the ceilings of the two H200s in results/h200: a card differs from the next by so much.
BETWEEN_CARDS = 1.035


class Phase:
    """Prefill (until the last first token) or the mean decode step: its lines, longest first, and their sums.

    In its interval what rests on one roof, or on one host, errs together; cards differ, and then in everything."""

    __slots__ = ("bytes", "high_s", "lines", "low_s", "matmul_flops", "seconds")

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines = sorted(lines, key=_seconds, reverse=True)
        self.seconds = sum([n.seconds for n in self.lines])
        self.low_s, self.high_s = _interval(self.lines, self.seconds)
        self.bytes = sum([n.bytes for n in self.lines])
        self.matmul_flops = sum([n.flops for n in self.lines if n.kind in MATMULS])


def _interval(lines: Sequence[Line], seconds: float) -> tuple[float, float]:
    below = above = (seconds * (BETWEEN_CARDS - 1)) ** 2
    together: dict[str, tuple[float, float]] = {}
    for n in lines:
        low, high = n.seconds - n.low_s, n.high_s - n.seconds
        if n.source == LEARNED:
            below += low * low
            above += high * high
        else:
            less, more = together.get(n.source, (0.0, 0.0))
            together[n.source] = (less + low, more + high)
    for low, high in together.values():
        below += low * low
        above += high * high
    return max(0.0, seconds - sqrt(below)), seconds + sqrt(above)


def _seconds(line: Line) -> float:
    return line.seconds


Use = tuple[str, int]  # role, repeat


class Template(NamedTuple):
    """A program lowered for one token. Every operator but attention grows with the tokens along one axis, so that a
    step of n tokens needs no lowering of its own."""

    operators: tuple[tuple[str, AlongTokens, tuple[Use, ...]], ...]  # kind, answers, uses
    attention: tuple[tuple[str, int, str, OverSequences], ...]  # role, repeat, kind, answers
    kernels: int  # that it launches


def template(program: Program, estimator: Estimator, kernels: Mapping[str, int]) -> Template:
    uses: dict[Op, dict[str, int]] = {}
    attention: dict[tuple[str, Attentive], int] = {}
    for block in program.blocks:
        for call in block.calls:
            op = call.op
            if isinstance(op, (Attention, MaskedAttention, Mla, SlidingAppend)):
                attention[call.role, op] = attention.get((call.role, op), 0) + block.repeat
            else:
                roles = uses.setdefault(op, {})
                roles[call.role] = roles.get(call.role, 0) + block.repeat
    return Template(
        tuple((op.kind, estimator.along(op), tuple(roles.items())) for op, roles in uses.items()),
        tuple(
            # the steps of a long prefill are full of the same sequences, whatever the batch
            (role, repeat, op.kind, lru_cache(maxsize=REMEMBERED)(estimator.over(op)))
            for (role, op), repeat in attention.items()
        ),
        sum(b.repeat * kernels.get(c.op.kind, c.op.KERNELS) for b in program.blocks for c in b.calls),
    )


def windows(program: Program) -> set[int]:
    return {getattr(c.op, "window", 0) for b in program.blocks for c in b.calls} - {0}


class Composer:
    """Predicts the steps of one model on one engine, under one estimator."""

    def __init__(
        self,
        decoder: Decoder,
        precision: Precision,
        tp: int,
        engine: str,
        estimator: Estimator,
        overheads: Overheads | None = None,
    ) -> None:
        self.decoder, self.precision, self.tp = decoder, precision, tp
        self.engine = engines.get(engine)
        self.estimator = estimator
        self.overheads = overheads or Overheads({})
        self.layers = sum(n for n, _ in decoder.layers)
        layers, kernels = body(decoder, 1, precision, tp), self.engine.KERNELS
        one_token = self.engine.rewrite(layers, True, decoder.architecture)
        self.decode_body = template(one_token, estimator, kernels)
        self.prefill_body = template(self.engine.rewrite(layers, False, decoder.architecture), estimator, kernels)
        last = self.engine.rewrite(head(decoder, 1, precision, tp), False, decoder.architecture)
        self.head = template(last, estimator, kernels)
        self.windows = windows(one_token)
        # decode steps of one batch size recur, and so do full steps of a prefill
        self._body = lru_cache(maxsize=REMEMBERED)(self._evaluate_body)
        self._head = lru_cache(maxsize=REMEMBERED)(self._evaluate_head)

    def panels(self, s: Scenario) -> int:
        """How finely the growing context of a decode is integrated. A step's time is linear in its context but for the
        bend where that outgrows a sliding window and the stairs of waves and splits: over a short stretch the middle
        does."""
        if any(s.prompt < w < s.prompt + s.output for w in self.windows):
            return PANELS
        return 1 if 4 * s.output > s.prompt else 0

    def phase(self, steps: engines.Weighted, asked: Scenario | None = None, lowered: float = 0.0) -> Phase:
        """Sum over steps, each times how many it stands for; `asked` where they end with the first tokens. `lowered`:
        how far the prompt lowered the clock, over the steps that follow it."""
        attention: list[Line] = []
        bodies: dict[tuple[int, bool], float] = {}
        heads: dict[int, float] = {}
        for step, weight in steps:
            tokens, rows, decode = step.pad_tokens, 0, True
            for seq in step.seqs:
                tokens += seq.new * seq.count
                rows += seq.count
                decode = decode and seq.new == 1
            bodies[tokens, decode] = bodies.get((tokens, decode), 0.0) + weight
            heads[rows] = heads.get(rows, 0.0) + weight
            for role, repeat, kind, over in (self.decode_body if decode else self.prefill_body).attention:
                for seq in step.seqs:
                    attention.append(_line(role, kind, repeat * weight, over(seq)))
        merged: dict[str, Line] = {}
        for (tokens, decode), weight in bodies.items():
            _add(merged, self._body(tokens, decode), weight)
        for rows, weight in heads.items():
            _add(merged, self._head(rows), weight)
        for one in attention:
            merge(merged, one, 1.0)
        lines = self._settled(list(merged.values()), asked)
        if self.overheads:
            low_s, high_s = sum([n.low_s for n in lines]), sum([n.high_s for n in lines])
            device = Range(sum([n.seconds for n in lines]), low_s, high_s)
            attention_s = sum([n.seconds for n in attention]) if asked is None else 0.0
            work = self.work(steps, asked)._replace(attention_s=attention_s, lowered=lowered)
            lines += map(_extra, self.overheads.extras(work, device))
        return Phase(lines)

    def _settled(self, lines: list[Line], asked: Scenario | None) -> list[Line]:
        """With arithmetic at the clock it runs at: a prefill finds a rested GPU, decode steps one that has settled."""
        settling = self.estimator.settling
        if settling is None:
            return lines
        factor = settling.settled if asked is None else settling.factor(sum([n.seconds for n in lines]))
        most = settling.unlimited
        return [_times(n, factor) if n.flops > most * n.seconds and n.source == LEARNED else n for n in lines]

    def lowered(self, prefill: Phase) -> float:
        """How far a prefill lowers the clock: by its arithmetic that draws all the power there is."""
        settling = self.estimator.settling
        if settling is None:
            return 0.0
        most = settling.unlimited
        return settling.lowered(sum([n.seconds for n in prefill.lines if n.flops > most * n.seconds]))

    def work(self, steps: engines.Weighted, asked: Scenario | None) -> Work:
        """What the steps ask of the engine besides their operators."""
        count = kernels = seqs = eager_kernels = graph_layers = 0.0
        for step, weight in steps:
            decode = all(seq.new == 1 for seq in step.seqs)
            launched = (self.decode_body if decode else self.prefill_body).kernels + self.head.kernels
            count += weight
            kernels += weight * launched
            seqs += weight * step.rows
            if not step.graph:
                eager_kernels += weight * launched
            elif asked is not None:
                graph_layers += weight * self.layers
        requests, tokens = (asked.batch, asked.batch * asked.prompt) if asked is not None else (0, 0)
        return Work(count, kernels, seqs, eager_kernels, graph_layers, requests, tokens)

    def _evaluate_body(self, tokens: int, decode: bool) -> dict[str, Line]:
        return self._grow(self.decode_body if decode else self.prefill_body, tokens)

    def _evaluate_head(self, rows: int) -> dict[str, Line]:
        return self._grow(self.head, rows)

    def _grow(self, one: Template, tokens: int) -> dict[str, Line]:
        """The lines of a template for so many tokens, attention left out."""
        lines: dict[str, Line] = {}
        for kind, along, uses in one.operators:
            found = along(tokens)
            for role, n in uses:
                made = _line(role, kind, n, found)
                if role in lines:
                    merge(lines, made, 1.0)
                else:
                    lines[role] = made
        return lines


def line(estimator: Estimator, role: str, calls: float, op: Op) -> Line:
    return _line(role, op.kind, calls, answer(*estimator(op)))


def _line(role: str, kind: str, n: float, found: Answer) -> Line:
    seconds, low_s, high_s, bound, source, flops, moved = found
    return Line(role, kind, n, seconds * n, low_s * n, high_s * n, bound, source, flops * n, moved * n)


def _times(line: Line, factor: float) -> Line:
    return line._replace(seconds=line.seconds * factor, low_s=line.low_s * factor, high_s=line.high_s * factor)


def _extra(extra: Extra) -> Line:
    seconds, low_s, high_s = extra.seconds
    return Line(extra.role, SOURCE, extra.calls, seconds, low_s, high_s, extra.bound, SOURCE, 0.0, 0.0)


def _add(into: dict[str, Line], lines: dict[str, Line], weight: float) -> None:
    if weight == 1.0 and into.keys().isdisjoint(lines):
        into.update(lines)
    else:
        for one in lines.values():
            merge(into, one, weight)


def merge(into: dict[str, Line], new: Line, weight: float) -> None:
    """Lines of one role add; kind, bound and source of the longer one stay."""
    role, kind, count, seconds, low_s, high_s, bound, source, flops, moved = new
    if weight != 1.0:
        count, seconds, low_s, high_s = count * weight, seconds * weight, low_s * weight, high_s * weight
        flops, moved = flops * weight, moved * weight
    old = into.get(role)
    if old is not None:
        if old.seconds > seconds:
            kind, bound, source = old.kind, old.bound, old.source
        count, seconds, low_s, high_s = count + old.calls, seconds + old.seconds, low_s + old.low_s, high_s + old.high_s
        flops, moved = flops + old.flops, moved + old.bytes
    into[role] = Line(role, kind, count, seconds, low_s, high_s, bound, source, flops, moved)
