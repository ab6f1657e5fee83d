"""The estimator that learned from measured operators. It declines what lies outside its measurements to another one."""

from __future__ import annotations

from collections.abc import Collection
from math import exp, log2

from chip.ops.attention import Attention
from chip.ops.elementwise import Elementwise
from chip.ops.embedding import Embedding
from chip.ops.linear import Linear
from chip.predict.roofline import Roofline
from chip.predict.shapes import features
from chip.predict.tables import COMPILE_AFTER, OperatorTable, Tables
from chip.types import Cost, Estimate, Op

DECODE_ATTENTION = "attention_decode"  # among `kinds`: attention of single tokens only
SLACK = 1.05  # how far outside its measurements an axis may lie


class Learned:
    """Estimates of operators as torch runs them. `kinds` limits it to those that an engine leaves to torch."""

    def __init__(self, tables: Tables, otherwise: Roofline, kinds: Collection[str] | None = None) -> None:
        self.units = tables.units
        self.otherwise = otherwise
        self.roof = otherwise.roof
        self._tables = {
            (t.op, t.dtype): t
            for t in tables.operators
            if kinds is None or t.op in kinds or (t.op == "attention" and DECODE_ATTENTION in kinds)
        }
        self._decode_only = kinds is not None and "attention" not in kinds
        self._asked = 0

    def __call__(self, op: Op) -> tuple[Estimate, Cost]:
        table = self._tables.get((op.kind, getattr(op, "dtype", "")))
        if table is None or not covers(table, op) or (self._decode_only and getattr(op, "q_len", 1) > 1):
            return self.otherwise(op)
        cost = op.cost()
        self._asked += 1
        seconds = table.base.seconds(op, cost, self.units) * exp(
            correction(table, op, self.units, self._asked > COMPILE_AFTER)
        )
        spread = next((s for s in table.spreads if seconds <= s.upto_s), table.spreads[-1])
        estimate = Estimate(
            seconds, seconds * spread.low, seconds * spread.high, "interpolated", _bound(table, cost, seconds)
        )
        return estimate, cost


def covers(table: OperatorTable, op: Op) -> bool:
    if isinstance(op, Linear) and op.weight_dtype not in ("", op.dtype):
        return False
    if isinstance(op, Attention) and (op.window or op.v_head_dim):
        return False
    return all(low / SLACK <= getattr(op, axis) <= high * SLACK for axis, (low, high) in table.ranges.items())


def correction(table: OperatorTable, op: Op, units: int, often: bool) -> float:
    """Natural logarithm of measured over base."""
    if table.surface is not None:
        assert isinstance(op, (Elementwise, Embedding))
        return table.surface(log2(op.rows), log2(op.cols))
    assert table.forest is not None
    x = features(op, units)
    return table.forest.compiled(x) if often else table.forest.walk(x)


def _bound(table: OperatorTable, cost: Cost, seconds: float) -> str:
    """The longest part: arithmetic, memory, or everything that is neither."""
    b = table.base
    arithmetic_s, memory_s = cost[0] / b.flop_per_s, (cost[1] + cost[2]) / b.bytes_per_s
    if seconds > 2 * max(arithmetic_s, memory_s):
        return "launch"
    return "compute" if arithmetic_s >= memory_s else "memory"
