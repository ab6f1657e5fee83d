"""The one interpolator: an operator's base time, corrected by what its nearest measured points say.

seconds = base x exp(correction). The correction is the mean of log(measured / base) over the nearest points, weighted
by their distance in logarithmic coordinates (`Op.place`). Its spread comes from the leave-one-out errors of these
points: how far off the same rule is when it predicts them from all others. Beyond the points the last correction is
kept and the spread grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import exp, hypot, log, sqrt
from typing import NamedTuple

from chip.ops.base_time import BaseTime
from chip.points import PointGroup
from chip.predict import carried
from chip.predict.carried import Carried
from chip.predict.limits import IMPORTED, INTERPOLATED, SCALED
from chip.predict.neighbours import Near, PointBlock
from chip.stats import rising
from chip.types import Op

NOISE = 0.02  # squared distance within which points count alike
LEAST_SPREAD = 0.02
REACH = 0.5  # distance to the nearest point above which the spread grows
GROWTH = 0.05  # of the spread, for each further 1 of distance
UNKNOWN_SPREAD = 0.15  # of points without a leave-one-out error
RAISED = 0.05  # a time that much above that of its own points is called raised
Z90 = 1.645  # standard deviations that hold 90 % of a normal error


class Correction(NamedTuple):
    value: float  # added to the logarithm of the base time
    spread: float  # standard deviation of that logarithm


class TimedPoint(NamedTuple):
    seconds: float
    spread: float


class Points:
    """A group of measured points with their base time, from which times of other shapes are interpolated."""

    def __init__(self, group: PointGroup, base: BaseTime) -> None:
        self.base, self.source = base, IMPORTED if group.imported else INTERPOLATED
        self.carried: Carried | None = None
        self.places = [op.place() for op in group.ops]
        self._group, self._residuals = group, dict[int, tuple[float, float]]()
        self._block = PointBlock(self.places)
        self.curves: dict[Op, TimeCurve] = {}  # by the operator for one token

    def carried_by(self, carried: Carried) -> Points:
        """The same points, to be read for another GPU of the chip that they were measured on."""
        made = Points.__new__(Points)
        vars(made).update(vars(self), source=SCALED, carried=carried, curves={})
        return made

    def as_read(self, op: Op, seconds: float) -> float:
        """An interpolated time, on the GPU that the points are read for."""
        return self.carried.seconds(op, seconds) if self.carried else seconds

    def seconds(self, op: Op) -> TimedPoint:
        """The interpolated time of one operator."""
        found = self.corrections([op.place()])[0]
        return TimedPoint(self.as_read(op, self.base.seconds(op) * exp(found.value)), found.spread)

    def corrections(self, places: Sequence[tuple[float, ...]], but: int = -1) -> list[Correction]:
        """For each of several places: fast where they differ in one or two coordinates only. `but`: the index of a
        point to leave out."""
        first, last = places[0], places[-1]
        moving = [a for a in range(len(first)) if first[a] != last[a]]
        if len(moving) > 2:
            return [self.corrections([place])[0] for place in places]
        return [self._mean(near) for near in self._block.nearest(places, moving, but)]

    def residual(self, point: int) -> tuple[float, float]:
        """A point's log(measured / base) and its variance, worked out when first asked for."""
        found = self._residuals.get(point)
        if found is None:
            op, seconds, loo = self._group.ops[point], self._group.seconds[point], self._group.loo
            error = loo[point] if loo else UNKNOWN_SPREAD
            found = self._residuals[point] = log(seconds / self.base.seconds(op)), log(1 + error) ** 2
        return found

    def _mean(self, near: Near) -> Correction:
        total = value = variance = 0.0
        for d2, point in near:
            weight = 1 / (d2 + NOISE)
            residual, own = self.residual(point)
            total += weight
            value += weight * residual
            variance += weight * own
        beyond = max(0.0, sqrt(near[0][0]) - REACH)
        spread = max(LEAST_SPREAD, sqrt(variance / total)) + GROWTH * beyond
        return Correction(value / total, hypot(spread, carried.SPREAD) if self.carried else spread)


NODES = [1 << i for i in range(18)]  # tokens


class TimeCurve:
    """An operator's time by its number of tokens: interpolated from points at powers of two, made to rise with the
    tokens, and in between it follows the base time."""

    __slots__ = ("_base", "_raised", "_spans")

    def __init__(
        self,
        make: Callable[[int], Op],
        points: Points,
        clocked: Callable[[Op, float], float] = lambda op, seconds: seconds,
        held_s: Callable[[Op, float], float] = lambda op, seconds: 0.0,
    ) -> None:
        """`clocked`: from an operator's seconds at the clock of its own points to those at the clock of all others.
        `held_s`: from these to the part of them that the power limit holds (`chip.predict.clock`)."""
        self._base = points.base.over(make)
        ops = list(map(make, NODES))
        found = points.corrections([op.place() for op in ops])
        bases = list(map(self._base, NODES))
        alone = [points.as_read(op, clocked(op, b * exp(c.value))) for op, b, c in zip(ops, bases, found)]
        times = rising(alone)
        self._raised = [t > own * (1 + RAISED) for t, own in zip(times, alone)]
        ends = list(zip(NODES, bases, times, [c.spread for c in found], map(held_s, ops, times)))
        self._spans = list(pairwise([*ends, ends[-1]]))

    def at(self, tokens: int) -> tuple[float, float, float]:
        """Seconds, spread, and the part of the seconds that the power limit holds."""
        (n, base_n, seconds, spread, held_s), (m, base_m, more, wider, more_held) = self._spans[_node(tokens)]
        base = self._base(tokens)
        if m == n:  # beyond the last node
            factor = base / base_n
            return seconds * factor, spread, held_s * factor
        share = (tokens - n) / (m - n)
        if base_m > base_n:  # as far on the way to the next node as the base is
            share = min(1.0, max(0.0, (base - base_n) / (base_m - base_n)))
        seconds, spread = seconds + (more - seconds) * share, spread + (wider - spread) * share
        return seconds, spread, held_s + (more_held - held_s) * share

    def is_raised(self, tokens: int) -> bool:
        """Whether the time is above that of its own points, because points of fewer tokens took longer."""
        return any(self._raised[_node(tokens) :][:2])


def _node(tokens: int) -> int:
    """The index of the node below."""
    return min(tokens.bit_length(), len(NODES)) - 1
