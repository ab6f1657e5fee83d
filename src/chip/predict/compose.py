"""From operators to a step, from steps to a request. Operators of a step run one after another: their times add.

Intervals of roofline estimates share their cause (the same ceilings and factors), so they add linearly too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple

from chip import engines
from chip.dtypes import Precision
from chip.models.decoder import Decoder
from chip.models.lower import body, head, is_placeholder
from chip.ops.attention import Attention
from chip.ops.mla import Mla
from chip.types import Cost, Estimate, Op

Estimator = Callable[[Op], tuple[Estimate, Cost]]


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


class Phase:
    """Prefill (until the last first token) or the mean decode step: its lines, longest first, and their sums."""

    __slots__ = ("high_s", "lines", "low_s", "rows_json", "seconds")

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines = sorted(lines, key=_seconds, reverse=True)
        self.seconds = sum([n.seconds for n in self.lines])
        self.low_s = sum([n.low_s for n in self.lines])
        self.high_s = sum([n.high_s for n in self.lines])
        self.rows_json = "[" + ",".join([self._row_json(n) for n in self.lines]) + "]"

    def _row_json(self, n: Line) -> str:
        """One row of the breakdown as JSON. Roles, kinds, bounds and sources are identifiers: nothing to escape."""
        return (
            f'{{"role":"{n.role}","op":"{n.kind}","count":{n.calls:.6g},"us":{n.seconds * 1e6:.7g},'
            f'"share":{n.seconds / self.seconds:.4g},"bound":"{n.bound}","source":"{n.source}",'
            f'"flops":{n.flops:.10g},"bytes":{n.bytes:.10g}}}'
        )


def _seconds(line: Line) -> float:
    return line.seconds


Placeholder = tuple[str, int, Attention | Mla]  # role, repeat, attention to be put over a step's sequences


class Composer:
    """Predicts the steps of one model on one engine, under one estimator."""

    def __init__(self, decoder: Decoder, precision: Precision, tp: int, engine: str, estimator: Estimator) -> None:
        self.decoder, self.precision, self.tp = decoder, precision, tp
        self.engine = engines.get(engine)
        self.estimator = estimator
        self._body = lru_cache(maxsize=1024)(self._evaluate_body)
        self._head = lru_cache(maxsize=1024)(self._evaluate_head)
        self.phase = lru_cache(maxsize=1024)(self._evaluate)

    def _evaluate(self, steps: engines.Weighted) -> Phase:
        """Sum over steps, each times how many it stands for."""
        attention: list[Line] = []
        bodies: dict[tuple[int, bool], float] = {}
        heads: dict[int, float] = {}
        for step, weight in steps:
            key = (step.tokens, all(s.new == 1 for s in step.seqs))
            rows = step.rows
            bodies[key] = bodies.get(key, 0.0) + weight
            heads[rows] = heads.get(rows, 0.0) + weight
            for role, repeat, op in self._body(*key)[1]:
                for seq in step.seqs:
                    attention.append(line(self.estimator, role, repeat * weight, op.over(seq)))
        parts = [(self._body(*key)[0], weight) for key, weight in bodies.items()]
        parts += [(self._head(rows), weight) for rows, weight in heads.items()]
        merged: dict[str, Line] = {}
        for lines, weight in parts:
            if weight == 1.0 and merged.keys().isdisjoint(lines):
                merged.update(lines)
            else:
                for one in lines.values():
                    merge(merged, one, weight)
        for one in attention:
            merge(merged, one, 1.0)
        return Phase(merged.values())

    def _evaluate_body(self, tokens: int, decode: bool) -> tuple[dict[str, Line], tuple[Placeholder, ...]]:
        """Everything up to the last norm but attention, which depends on the sequences and comes back to be placed."""
        program = self.engine.rewrite(body(self.decoder, tokens, self.precision, self.tp), decode)
        merged: dict[str, Line] = {}
        placeholders: list[Placeholder] = []
        for block in program.blocks:
            for call in block.calls:
                op = call.op
                if is_placeholder(op):
                    assert isinstance(op, (Attention, Mla))
                    placeholders.append((call.role, block.repeat, op))
                else:
                    merge(merged, line(self.estimator, call.role, block.repeat, op), 1.0)
        return merged, tuple(placeholders)

    def _evaluate_head(self, rows: int) -> dict[str, Line]:
        blocks = self.engine.rewrite(head(self.decoder, rows, self.precision, self.tp), False).blocks
        return {c.role: line(self.estimator, c.role, b.repeat, c.op) for b in blocks for c in b.calls}


def line(estimator: Estimator, role: str, calls: float, op: Op) -> Line:
    e, c = estimator(op)
    return Line(
        role,
        op.kind,
        calls,
        e.seconds * calls,
        e.low_s * calls,
        e.high_s * calls,
        e.bound,
        e.source,
        c.flops * calls,
        c.bytes * calls,
    )


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
