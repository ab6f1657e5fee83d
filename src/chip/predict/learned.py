"""The estimator that learned from measured operators. It declines what lies outside its measurements to another one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import ceil, exp, log2

from chip.ops.attention import Attention
from chip.ops.elementwise import Elementwise
from chip.ops.embedding import Embedding
from chip.ops.linear import Linear
from chip.ops.mla import Mla
from chip.predict.along import (
    CONTEXT_NODES_LOG2,
    TOKEN_NODES_LOG2,
    AlongTokens,
    Answer,
    OverSequences,
    answer,
    between,
    grown,
)
from chip.predict.roofline import Roofline
from chip.predict.shapes import ALIGNED, features
from chip.predict.tables import COMPILE_AFTER, OperatorTable, Tables
from chip.types import Cost, Estimate, Op, Seq

DECODE_ATTENTION = "attention_decode"  # among `kinds`: attention of single tokens only


MOST_BATCHES = 64  # batch sizes whose attention is remembered, so that a sweep of any length runs in bounded memory


class Learned:
    """Estimates of operators as torch runs them. `kinds` limits it to those that an engine leaves to torch."""

    def __init__(self, tables: Tables, otherwise: Roofline, kinds: Collection[str] | None = None) -> None:
        self.units = tables.units
        self.otherwise = otherwise
        self.roof = otherwise.roof
        self._tables = {
            (t.op, t.dtype): t
            for t in sorted(tables.operators, key=lambda t: t.points)  # of two implementations the better measured
            if kinds is None or t.op in kinds or (t.op == "attention" and DECODE_ATTENTION in kinds)
        }
        self._decode_only = kinds is not None and "attention" not in kinds
        self._asked = 0

    def __call__(self, op: Op) -> tuple[Estimate, Cost]:
        table = self._tables.get((op.kind, getattr(op, "dtype", "")))
        if table is None or not covers(table, op) or (self._decode_only and getattr(op, "q_len", 1) > 1):
            return self.otherwise(op)
        self._asked += 1
        cost = op.cost()
        seconds = self._seconds(table, op, cost)
        low, high = table.spread(seconds)
        bound = self._bound(op, cost, seconds)
        return Estimate(seconds, seconds * low, seconds * high, "interpolated", bound), cost

    def along(self, op: Op) -> AlongTokens:
        """As the roofline's. Dense layers are asked at nodes of m and drawn straight between them."""
        table = self._tables.get((op.kind, getattr(op, "dtype", "")))
        if table is None:
            return self.otherwise.along(op)
        make, declined = grown(op), self.otherwise.along(op)
        if not isinstance(op, Linear):
            return lambda tokens: answer(*self(make(tokens)))
        known: dict[int, float] = {}
        once = op.m
        fits = covers(table, replace(op, m=max(op.m, ceil(table.ranges["m"][0]))))
        least, most = next((low, high) for axis, low, high in table.limits if axis == "m")

        def ask(m: int) -> float:
            self._asked += 1
            dense = replace(op, m=m)
            return self._seconds(table, dense, dense.cost())

        def at(tokens: int) -> Answer:
            m = once * tokens
            if not fits or not least <= m <= most:
                return declined(tokens)
            _, _, _, bound, _, flops, moved = declined(tokens)
            seconds = between(m, known, ask, TOKEN_NODES_LOG2)
            low, high = table.spread(seconds)
            return seconds, seconds * low, seconds * high, bound, "interpolated", flops, moved

        return at

    def over(self, op: Attention | Mla) -> OverSequences:
        """As the roofline's. Decode attention is asked at nodes of the context."""
        table = self._tables.get((op.kind, op.dtype))
        declined = self.otherwise.over(op)
        if table is None or not isinstance(op, Attention) or not covers(table, _inside(table, op)):
            return declined
        (few, many), (short, long) = (
            next((low, high) for axis, low, high in table.limits if axis == name) for name in ("batch", "kv_len")
        )
        known: dict[int, dict[int, float]] = {}

        def at(seq: Seq) -> Answer:
            if seq.new > 1 and self._decode_only:
                return declined(seq)
            placed = op.over(seq)
            if seq.new > 1:
                return answer(*self(placed))
            if not (few <= seq.count <= many and short <= placed.kv_len <= long):
                return declined(seq)

            def ask(keys: int) -> float:
                self._asked += 1
                longer = replace(placed, kv_len=keys)
                return self._seconds(table, longer, longer.cost())

            if len(known) > MOST_BATCHES:
                known.clear()
            seconds = between(placed.kv_len, known.setdefault(seq.count, {}), ask, CONTEXT_NODES_LOG2)
            low, high = table.spread(seconds)
            cost = placed.cost()
            bound = self._bound(placed, cost, seconds)
            return seconds, seconds * low, seconds * high, bound, "interpolated", cost[0], cost[1] + cost[2]

        return at

    def _seconds(self, table: OperatorTable, op: Op, cost: Cost) -> float:
        """Base times exp(correction)."""
        base = table.base.seconds(op, cost, self.units)
        if table.surface is not None:
            assert isinstance(op, (Elementwise, Embedding))
            return base * exp(table.surface(log2(op.rows), log2(op.cols)))
        forest = table.forest
        assert forest is not None
        x = features(op, cost, self.units)
        return base * exp(forest.compiled(x) if self._asked > COMPILE_AFTER else forest.walk(x))

    def _bound(self, op: Op, cost: Cost, seconds: float) -> str:
        """The longest part: arithmetic, memory, or everything that is neither. The roof's rates tell, since those of a
        fitted base may trade places."""
        roof, name = self.roof, op.compute
        arithmetic_s = cost[0] / roof.compute[name].value if name in roof.compute else 0.0
        memory_s = (cost[1] + cost[2]) / (roof.stream if name == "matmul_fp32" else roof.weights).value
        longer = max(arithmetic_s, memory_s)
        if seconds > 2 * longer:
            return "launch"
        return "compute" if arithmetic_s == longer else "memory"


def _inside(table: OperatorTable, op: Attention) -> Attention:
    """The same heads at a batch and lengths that the table surely knows."""
    batch, keys = (int(table.ranges[name][1]) for name in ("batch", "kv_len"))
    return replace(op, batch=batch, q_len=1, kv_len=keys)


def covers(table: OperatorTable, op: Op) -> bool:
    if isinstance(op, Linear):
        if (op.weight_dtype and op.weight_dtype != op.dtype) or op.n % ALIGNED or op.k % ALIGNED:
            return False
    elif isinstance(op, Attention) and (op.window or op.v_head_dim or op.q_len > op.kv_len):
        return False
    for axis, low, high in table.limits:  # noqa: SIM110 (a generator costs three times as much, a dozen times a scenario)
        if not low <= getattr(op, axis) <= high:
            return False
    return True
