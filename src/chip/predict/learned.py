"""The estimator that learned from measured operators. It declines what lies outside its measurements to another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, exp
from typing import TypeVar

from chip.dtypes import BYTES
from chip.ops.add import Add
from chip.ops.attention import Attention
from chip.ops.composed import Composed
from chip.ops.kv_roll import SlidingAppend
from chip.ops.linear import Linear
from chip.ops.masked_attention import MaskedAttention
from chip.ops.mla import Mla
from chip.ops.moe_experts import MoeExperts
from chip.ops.moe_router import MoeRouter
from chip.predict.along import (
    CONTEXT_NODES_LOG2,
    ROW_NODES_LOG2,
    TOKEN_NODES_LOG2,
    AlongTokens,
    Answer,
    OverSequences,
    answer,
    between,
    grown,
)
from chip.predict.parts import summed
from chip.predict.roofline import Attentive, Roofline
from chip.predict.shapes import ALIGNED
from chip.predict.tables import COMPILE_AFTER, ROW_OPS, OperatorTable, Tables, sizes_log2
from chip.types import Cost, Estimate, Op, Seq

SAME_KERNELS = {"fp16": "bf16"}  # as wide and as fast: one template of a kernel, the other type
TORCH = ("torch", "flash")  # implementations that torch chooses itself
DECODE_ATTENTION = "attention_decode"
# Implementations that are one kernel which touches each of its bytes once: known by no more than that, or measured as
# torch.compile makes it and known so where it was not.
ONE_PASS = ("one_pass", "compiled")
AnyOp = TypeVar("AnyOp", bound=Op)
MOST_BATCHES = 64  # batch sizes whose attention is remembered, so that a sweep of any length runs in bounded memory


def slot(op: Op) -> str:
    """What a table is looked up by: the kind, attention of single tokens apart."""
    return DECODE_ATTENTION if isinstance(op, Attention) and op.q_len == 1 and op.kind == "attention" else op.kind


def _preference(t: OperatorTable) -> tuple[bool, bool, int]:
    return t.context == "hot", t.implementation in TORCH, t.points


class Learned:
    """Estimates from measured operators. `runs_as` says which implementation an engine runs of each operator (of
    attention, `attention_decode` for single tokens); what it does not name is left to the roofline. Without it each
    operator is taken as torch runs it, else as it was measured most, with nothing warm in cache."""

    def __init__(self, tables: Tables, otherwise: Roofline, runs_as: Mapping[str, str] | None = None) -> None:
        self.units = tables.units
        self.settling = tables.settling
        self.otherwise = otherwise
        self.roof = otherwise.roof
        self._tables: dict[tuple[str, str], tuple[OperatorTable, ...]] = {}  # the first that covers an operator answers
        for t in sorted(tables.operators, key=_preference, reverse=True):
            for name in (t.op, DECODE_ATTENTION) if t.op == "attention" else (t.op,):
                better = self._tables.get((name, t.dtype), ())
                wanted = (
                    t.context == "cold" and not better if runs_as is None else runs_as.get(name) == t.implementation
                )
                if wanted:
                    self._tables[name, t.dtype] = (*better, t)
        self._one_pass = frozenset(kind for kind, how in (runs_as or {}).items() if how in ONE_PASS)
        self._additions = {
            t.dtype: t for t in sorted(tables.operators, key=lambda t: t.context == "hot") if t.op == Add.kind
        }
        for dtype, like in SAME_KERNELS.items():
            for (name, known), these in list(self._tables.items()):
                if known == like:
                    self._tables.setdefault((name, dtype), these)
            if like in self._additions:
                self._additions.setdefault(dtype, self._additions[like])
        self._asked = 0

    def learned_in(self, dtype: str) -> str:
        """The dtype of the measurements that answer for this one; nothing where there are none."""
        return next((these[0].dtype for (_, known), these in self._tables.items() if known == dtype), "")

    def __call__(self, op: Op) -> tuple[Estimate, Cost]:
        for table in self._tables.get((slot(op), getattr(op, "dtype", "")), ()):
            seen = _long_enough(table, visible(op))
            if covers(table, seen):
                return self._known(table, op, seen)
        if op.kind in self._one_pass:
            return self._passing(op)
        return summed(op, self) if isinstance(op, Composed) else self.otherwise(op)

    def _known(self, table: OperatorTable, op: Op, seen: Op) -> tuple[Estimate, Cost]:
        """`seen`: what of the operator its time rests on."""
        self._asked += 1
        cost = op.cost()
        seconds = self._seconds(table, seen, cost)
        low, high = table.spread(seconds)
        bound = self._bound(op, cost, seconds)
        return Estimate(seconds, seconds * low, seconds * high, "interpolated", bound), cost

    def _passing(self, op: Op) -> tuple[Estimate, Cost]:
        """As an addition that moves the same bytes, since such a kernel does little else."""
        assert isinstance(op, ROW_OPS)
        cost = op.cost()
        like, table = _addition(op.rows, cost[1] + cost[2], op.dtype), self._additions.get(op.dtype)
        if table is None or not covers(table, like):
            return self.otherwise(op)
        self._asked += 1
        seconds = self._seconds(table, like, like.cost())
        low, high = table.spread(seconds)
        return Estimate(seconds, seconds * low, seconds * high, "interpolated", self._bound(op, cost, seconds)), cost

    def along(self, op: Op) -> AlongTokens:
        """As the roofline's. Operators are asked at nodes of their rows and drawn straight between them."""
        plain = getattr(op, "plain", None)  # a fused kernel that was not measured: as the one it grew from
        if plain and (op.kind, getattr(op, "dtype", "")) not in self._tables:
            return self.along(plain)
        answers = self._passing_along(op) if op.kind in self._one_pass else self.otherwise.along(op)
        for table in reversed(self._tables.get((slot(op), getattr(op, "dtype", "")), ())):
            answers = self._along(op, table, answers)
        return answers

    def _along(self, op: Op, table: OperatorTable, declined: AlongTokens) -> AlongTokens:
        """From one table, where it covers the operator."""
        axis = "m" if isinstance(op, Linear) else "tokens" if isinstance(op, (MoeExperts, MoeRouter)) else "rows"
        once = getattr(op, axis)
        known: dict[int, float] = {}
        least, most = _of_axis(table, op, axis)
        fits = covers(table, replace(op, **{axis: max(once, ceil(least))}))  # type: ignore[type-var]
        nodes_log2 = TOKEN_NODES_LOG2 if isinstance(op, (Linear, MoeExperts)) else ROW_NODES_LOG2

        def ask(m: int) -> float:
            self._asked += 1
            larger = replace(op, **{axis: m})  # type: ignore[type-var]
            return self._seconds(table, larger, larger.cost())

        def at(tokens: int) -> Answer:
            m = once * tokens
            if not fits or not least <= m <= most:
                return declined(tokens)
            _, _, _, bound, _, flops, moved = declined(tokens)
            seconds = between(m, known, ask, nodes_log2)
            low, high = table.spread(seconds)
            return seconds, seconds * low, seconds * high, bound, "interpolated", flops, moved

        return at

    def _passing_along(self, op: Op) -> AlongTokens:
        """As `along`: asked at nodes, straight between them."""
        assert isinstance(op, ROW_OPS)
        make, declined, table = grown(op), self.otherwise.along(op), self._additions.get(op.dtype)
        if table is None:
            return declined
        once, dtype = op.rows, op.dtype
        known: dict[int, float] = {}

        def ask(tokens: int) -> float:
            self._asked += 1
            cost = make(tokens).cost()
            like = _addition(once * tokens, cost[1] + cost[2], dtype)
            return self._seconds(table, like, like.cost())

        def at(tokens: int) -> Answer:
            found = declined(tokens)
            _, _, _, bound, _, flops, moved = found
            if not covers(table, _addition(once * tokens, moved, dtype)):
                return found
            seconds = between(tokens, known, ask, ROW_NODES_LOG2)
            low, high = table.spread(seconds)
            return seconds, seconds * low, seconds * high, bound, "interpolated", flops, moved

        return at

    def over(self, op: Attentive) -> OverSequences:
        """As the roofline's. Decode attention is asked at nodes of the context."""
        declined = self.otherwise.over(op)
        if isinstance(op, Mla):
            return declined
        if isinstance(op, SlidingAppend):
            return lambda seq: answer(*self(op.over(seq)))
        if isinstance(op, Composed):
            composed = op

            def declined(seq: Seq) -> Answer:
                return answer(*summed(composed.over(seq), self))

        table = next(iter(self._tables.get((slot(replace(op, q_len=1)), op.dtype), ())), None)
        if table is None or not covers(table, _inside(table, op)):
            return lambda seq: declined(seq) if seq.new == 1 else answer(*self(op.over(seq)))
        (few, many), (short, long) = (
            next((low, high) for axis, low, high in table.limits if axis == name) for name in ("batch", "kv_len")
        )
        known: dict[int, dict[int, float]] = {}

        def at(seq: Seq) -> Answer:
            placed = visible(op.over(seq))
            if seq.new > 1:
                return answer(*self(placed))
            if not (few <= seq.count <= many and placed.kv_len <= long):
                return declined(seq)

            def ask(keys: int) -> float:
                self._asked += 1
                longer = replace(placed, kv_len=keys)
                return self._seconds(table, longer, longer.cost())

            if len(known) > MOST_BATCHES:
                known.clear()
            keys = max(placed.kv_len, ceil(short))
            seconds = between(keys, known.setdefault(seq.count, {}), ask, CONTEXT_NODES_LOG2)
            low, high = table.spread(seconds)
            cost = placed.cost()
            bound = self._bound(placed, cost, seconds)
            return seconds, seconds * low, seconds * high, bound, "interpolated", cost[0], cost[1] + cost[2]

        return at

    def _seconds(self, table: OperatorTable, op: Op, cost: Cost) -> float:
        """Base times exp(correction)."""
        base = table.base.seconds(op, cost, self.units)
        if table.surface is not None:
            return base * exp(table.surface(*sizes_log2(op)))
        forest = table.forest
        assert forest is not None
        x = table.base.features(op, cost, self.units, base)
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


def _addition(rows: int, moved: float, dtype: str) -> Add:
    """One of so many rows that moves so many bytes."""
    return Add(rows, round(moved / (rows * 3 * BYTES[dtype])), dtype)


def _of_axis(table: OperatorTable, op: Op, axis: str) -> tuple[float, float]:
    """The least and the most of an axis that the table answers for, the others as they are."""
    for name, low, high in table.limits:
        if name == axis:
            return low, high
        if name == "elements":
            return low / op.cols, high / op.cols  # type: ignore[attr-defined]
    raise KeyError(axis)


def _inside(table: OperatorTable, op: Attention | MaskedAttention) -> Attention | MaskedAttention:
    """The same heads at a batch and lengths that the table surely knows."""
    batch, keys = (int(table.ranges[name][1]) for name in ("batch", "kv_len"))
    return replace(op, batch=batch, q_len=1, kv_len=keys)


def visible(op: AnyOp) -> AnyOp:
    """A single token under a window just sees fewer keys: the same attention over those."""
    if isinstance(op, Attention) and op.q_len == 1 and 0 < op.window < op.kv_len:
        return replace(op, kv_len=op.window)
    return op


def _long_enough(table: OperatorTable, op: AnyOp) -> AnyOp:
    """Over fewer keys than were ever measured attention takes no less than over the fewest that were."""
    if isinstance(op, (Attention, MaskedAttention)):
        for axis, low, _ in table.limits:
            if axis == "kv_len" and op.kv_len < low:
                return replace(op, kv_len=ceil(low))
    return op


def _windowed(op: Attention) -> bool:
    """A window that hides something from a step of several tokens."""
    return bool(op.window and op.q_len > 1 and op.kv_len > op.window and not isinstance(op, Composed))


def covers(table: OperatorTable, op: Op) -> bool:
    if isinstance(op, Linear):
        if (op.weight_dtype and op.weight_dtype != op.dtype) or op.n % ALIGNED or op.k % ALIGNED:
            return False
    elif isinstance(op, MoeExperts):
        if op.weight_dtype not in ("", op.dtype) or not op.gated:
            return False
    elif (isinstance(op, Attention) and (_windowed(op) or op.v_head_dim or op.q_len > op.kv_len)) or (
        isinstance(op, MaskedAttention) and op.v_head_dim
    ):
        return False
    for axis, low, high in table.limits:  # noqa: SIM110 (a generator costs three times as much, a dozen times a scenario)
        if not low <= getattr(op, axis) <= high:
            return False
    return True
