"""The estimator that learned from measured operators. It declines what lies outside its measurements to another one."""

from __future__ import annotations

from collections.abc import Collection
from math import exp, log2

from chip.ops.attention import Attention
from chip.ops.elementwise import Elementwise
from chip.ops.embedding import Embedding
from chip.ops.linear import Linear
from chip.predict.roofline import Roofline
from chip.predict.shapes import ALIGNED, features
from chip.predict.tables import COMPILE_AFTER, OperatorTable, Tables
from chip.types import Cost, Estimate, Op

DECODE_ATTENTION = "attention_decode"  # among `kinds`: attention of single tokens only


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
