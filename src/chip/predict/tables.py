"""What was learned from measured operators, as plain arrays: `chip fit` writes it, the estimator reads it.

time = base x exp(correction). The base is a floor plus the longer of arithmetic and memory time; the correction is a
forest over the features of `shapes`, or a surface over the logarithms of rows and columns (`rows.sizes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import dist, log2
from typing import ClassVar

from chip.ops.attention import Attention
from chip.ops.composed import KINDS, Composed
from chip.ops.elementwise import Elementwise
from chip.ops.embedding import Embedding
from chip.ops.growing_attention import GrowingAttention
from chip.ops.masked_attention import MaskedAttention
from chip.ops.moe_experts import MoeExperts
from chip.ops.rope import Rope
from chip.ops.sampling import Sampling
from chip.predict import experts, flash, rows, tiled
from chip.predict.settling import Settling
from chip.predict.shapes import features, masked_attention_s
from chip.types import Cost, Op

STEP = 6.0  # octaves
AXES = {  # what a forest's table has ranges of
    "linear": ("m", "n", "k"),
    **dict.fromkeys(
        ("attention", "masked_attention", "growing_attention", *KINDS),
        ("batch", "heads", "kv_heads", "head_dim", "q_len", "kv_len"),
    ),
    **dict.fromkeys(experts.EXPERT_KINDS, ("tokens", "hidden", "intermediate", "experts", "top_k")),
    **dict.fromkeys(experts.ROUTER_KINDS, ("tokens", "hidden", "experts", "top_k")),
}
ROW_OPS = (Elementwise, Embedding, Sampling, Rope)
SLACK = 1.05  # how far outside its measurements an axis may lie, ...
# ... one that counts through its product with the batch, or beyond whose ends a floor or the bandwidth is all
LOOSE = {"heads": 2.0, "elements": 4.0}
COMPILE_AFTER = 64  # evaluations: a single prediction walks the trees, a sweep compiles them


@dataclass(frozen=True)
class Base:
    """Where a correction starts from."""

    floor_s: float
    flop_per_s: float
    bytes_per_s: float
    copy_bytes_per_s: float = (
        1.0  # of heads copied for each query of their group, of a cache that grows; of passes beside experts' products
    )
    tiled: tiled.Tiled | None = None  # of attention whose kernels work so
    blocks: flash.Blocks | None = None  # or so
    rows: rows.Rows | None = None  # of operators over rows and columns

    def seconds(self, op: Op, cost: Cost, units: int) -> float:
        memory_s = (cost[1] + cost[2]) / self.bytes_per_s
        if isinstance(op, MaskedAttention):
            rates = (self.flop_per_s, self.bytes_per_s, self.copy_bytes_per_s)
            return self.floor_s + masked_attention_s(op, units, *rates)
        if isinstance(op, Composed):  # products and passes over the scores are kernels of their own
            return self.floor_s + cost[0] / self.flop_per_s + memory_s
        if isinstance(op, Attention) and self.tiled is not None:
            return self.floor_s + tiled.seconds(op, units, self.tiled, self.flop_per_s, self.bytes_per_s)
        if isinstance(op, Attention) and self.blocks is not None:
            moved = sum(Attention.cost(op)[1:]) if isinstance(op, GrowingAttention) else cost[1] + cost[2]
            copies_s = (cost[1] + cost[2] - moved) / self.copy_bytes_per_s
            attention_s = flash.seconds(op, moved, units, self.blocks, self.flop_per_s, self.bytes_per_s)
            return self.floor_s + copies_s + attention_s
        if isinstance(op, MoeExperts):
            return self.floor_s + experts.seconds(op, self.flop_per_s, self.bytes_per_s, self.copy_bytes_per_s)
        if self.rows is not None:
            return self.floor_s + rows.seconds(op, cost[1] + cost[2], self.rows)
        return self.floor_s + max(cost[0] / self.flop_per_s, memory_s)

    def features(self, op: Op, cost: Cost, units: int, base_s: float) -> list[float]:
        """What a forest's correction of this base depends on."""
        if self.tiled is not None and isinstance(op, Attention):
            return tiled.features(op, self.tiled.packs, base_s)
        return features(op, cost, units)


@dataclass(frozen=True)
class Forest:
    """Regression trees as arrays: node i goes left when x[feature[i]] <= threshold[i]; a leaf has left -1."""

    start: float
    roots: tuple[int, ...]
    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]

    def walk(self, x: Sequence[float]) -> float:
        total = self.start
        feature, threshold, left, right = self.feature, self.threshold, self.left, self.right
        for i in self.roots:
            while left[i] >= 0:
                i = left[i] if x[feature[i]] <= threshold[i] else right[i]
            total += self.value[i]
        return total

    @cached_property
    def compiled(self) -> Callable[[Sequence[float]], float]:
        """The same trees as one Python expression: ten times faster, after some milliseconds of compiling."""
        terms = " + ".join(self._text(root) for root in self.roots)
        used = sorted(set(self.feature))
        names = ", ".join(f"x{f}" for f in used)
        source = f"def forest(x):\n    {names}, = [x[f] for f in {used}]\n    return {self.start!r} + {terms}\n"
        scope: dict[str, Callable[[Sequence[float]], float]] = {}
        exec(source, scope)  # numbers only: the codec has checked that every array holds nothing else
        return scope["forest"]

    def _text(self, i: int) -> str:
        if self.left[i] < 0:
            return repr(float(self.value[i]))
        test = f"x{int(self.feature[i])} <= {float(self.threshold[i])!r}"
        return f"({self._text(self.left[i])} if {test} else {self._text(self.right[i])})"


def axes(kind: str) -> tuple[str, ...]:
    return AXES.get(kind) or (rows.FLAT_AXES if kind in rows.FLAT else rows.ROW_AXES)


def sizes_log2(op: Op) -> tuple[float, float]:
    down, across = rows.sizes(op)
    return log2(down), log2(across)


def place(at: tuple[float, float], edges: Sequence[tuple[int, float]]) -> tuple[float, ...]:
    """Coordinates in which points on different sides of an edge are no neighbours."""
    return (*at, *[STEP if at[axis] > edge else 0.0 for axis, edge in edges]) if edges else at


@dataclass(frozen=True)
class Surface:
    """A correction over log2 rows and log2 columns: a constant plus weighted distances to the measured points. At each
    of its `edges` (of rows, 0, or columns, 1) another kernel takes over: what lies beyond is STEP further away."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    weight: tuple[float, ...]
    constant: float
    edges: tuple[tuple[int, float], ...] = ()

    def __call__(self, x: float, y: float) -> float:
        at = place((x, y), self.edges)
        return self.constant + sum([w * dist(at, p) for p, w in zip(self.points, self.weight)])

    @cached_property
    def points(self) -> list[tuple[float, ...]]:
        return [place(p, self.edges) for p in zip(self.x, self.y)]


@dataclass(frozen=True)
class Spread:
    """Measured over predicted, 5th and 95th percentile in cross-validation, for predictions up to `upto_s`."""

    upto_s: float
    low: float
    high: float


@dataclass(frozen=True)
class OperatorTable:
    op: str
    implementation: str
    dtype: str
    base: Base
    ranges: dict[str, tuple[float, float]]  # axes as measured; outside them the table declines
    spreads: tuple[Spread, ...]
    points: int
    median_error: float  # in cross-validation: shapes the fit had not seen
    p90_error: float
    forest: Forest | None = None
    surface: Surface | None = None
    context: str = "cold"  # or "hot": inputs warm in cache

    @cached_property
    def limits(self) -> list[tuple[str, float, float]]:
        """(axis, least, most) that the table answers for."""
        found = []
        for axis, (low, high) in self.ranges.items():
            slack = LOOSE.get(axis, SLACK)
            found.append((axis, low / slack, high * slack))
        return found

    def spread(self, seconds: float) -> tuple[float, float]:
        for s in self.spreads:
            if seconds <= s.upto_s:
                return s.low, s.high
        return self.spreads[-1].low, self.spreads[-1].high


@dataclass(frozen=True)
class Tables:
    SCHEMA: ClassVar[str] = "chip.operator_tables/1"

    device: str
    units: int
    operators: tuple[OperatorTable, ...]
    settling: Settling | None = None  # of arithmetic, where the profile tells boost from settled
