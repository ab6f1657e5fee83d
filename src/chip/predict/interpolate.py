"""The one interpolator: an operator's base time, corrected by what its nearest measured points say.

seconds = base x exp(correction), where the correction is the mean of log(measured / base) of the nearest points,
weighted by their distance in logarithmic coordinates (`Op.place`). Its spread is what the same rule gets wrong where it
predicts those points from the others. Beyond the points the last correction goes on, and the spread grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import exp, log, sqrt
from typing import NamedTuple

from chip.ops.base_time import BaseTime
from chip.points import PointGroup
from chip.predict.neighbours import Near, PointBlock
from chip.stats import rising
from chip.types import Op

NOISE = 0.02  # squared distance within which points count alike
LEAST_SPREAD = 0.02
REACH = 0.5  # distance to the nearest point from which on the spread grows, ...
GROWTH = 0.07  # ... by so much for each more
UNKNOWN_SPREAD = 0.15  # of points without a leave-one-out error
RAISED = 0.05  # part by which a time is above what its own points say, from which on that is said
Z90 = 1.645  # standard deviations that hold 90 % of a normal error


class Correction(NamedTuple):
    value: float  # of the logarithm of the time
    spread: float  # its standard deviation


class TimedPoint(NamedTuple):
    seconds: float
    spread: float


class Points:
    """A group of measured points, ready to be asked."""

    def __init__(self, group: PointGroup, base: BaseTime) -> None:
        self.base = base
        self.places = [op.place() for op in group.ops]
        self._group, self._residuals = group, dict[int, tuple[float, float]]()
        self._block = PointBlock(self.places)
        self.curves: dict[Op, TimeCurve] = {}  # of operators that differ in tokens

    def seconds(self, op: Op, place: tuple[float, ...] = ()) -> TimedPoint:
        """`place` among the points, if not where it says itself."""
        found = self.corrections([place or op.place()])[0]
        return TimedPoint(self.base.seconds(op) * exp(found.value), found.spread)

    def corrections(self, places: Sequence[tuple[float, ...]], but: int = -1) -> list[Correction]:
        """Of several places, which mostly share all coordinates but one or two. `but`: a point to leave out."""
        first, last = places[0], places[-1]
        moving = [a for a in range(len(first)) if first[a] != last[a]]
        if len(moving) > 2:
            return [self.corrections([place])[0] for place in places]
        return [self._mean(near) for near in self._block.nearest(places, moving, but)]

    def residual(self, point: int) -> tuple[float, float]:
        """The logarithm of its time over the base, and the variance of that: worked out for points that are near."""
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
        return Correction(value / total, max(LEAST_SPREAD, sqrt(variance / total)) + GROWTH * beyond)


NODES = [1 << i for i in range(18)]  # tokens


class TimeCurve:
    """An operator's time along its tokens: known at powers of two, which never fall, and following the base between."""

    __slots__ = ("_base", "_raised", "_spans")

    def __init__(
        self,
        make: Callable[[int], Op],
        points: Points,
        clocked: Callable[[Op, float], float] = lambda op, seconds: seconds,
        held_s: Callable[[Op, float], float] = lambda op, seconds: 0.0,
    ) -> None:
        """`clocked`: from the seconds of an operator at the clock of its points to those at the clock that the other
        points were timed at. `held_s`: of these the seconds that the power limit holds (`chip.predict.clock`)."""
        self._base = points.base.over(make)
        ops = list(map(make, NODES))
        found = points.corrections([op.place() for op in ops])
        bases = list(map(self._base, NODES))
        alone = [clocked(op, b * exp(c.value)) for op, b, c in zip(ops, bases, found)]
        times = rising(alone)
        self._raised = [t > own * (1 + RAISED) for t, own in zip(times, alone)]
        ends = list(zip(NODES, bases, times, [c.spread for c in found], map(held_s, ops, times)))
        self._spans = list(pairwise([*ends, ends[-1]]))

    def at(self, tokens: int) -> tuple[float, float, float]:
        """Seconds, spread, and of the seconds those that the power limit holds."""
        (n, low, seconds, spread, held_s), (m, high, more, wider, more_held) = self._spans[_node(tokens)]
        base = self._base(tokens)
        if m == n:
            more = base / low
            return seconds * more, spread, held_s * more
        share = (tokens - n) / (m - n)
        if high > low:  # as far on the way to the next node as the base is
            share = min(1.0, max(0.0, (base - low) / (high - low)))
        seconds, spread = seconds + (more - seconds) * share, spread + (wider - spread) * share
        return seconds, spread, held_s + (more_held - held_s) * share

    def is_raised(self, tokens: int) -> bool:
        """Whether it takes longer than its own points say, because points of fewer tokens do."""
        return any(self._raised[_node(tokens) :][:2])


def _node(tokens: int) -> int:
    """The number of the node below."""
    return min(tokens.bit_length(), len(NODES)) - 1
