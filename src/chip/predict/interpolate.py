"""The one interpolator: an operator's base time, corrected by what its nearest measured points say.

seconds = base x exp(correction), where the correction is the mean of log(measured / base) of the nearest points,
weighted by their distance in logarithmic coordinates (`Op.place`). Its spread is what the same rule gets wrong where it
predicts those points from the others. Beyond the points the last correction goes on, and the spread grows.
"""

from __future__ import annotations

from bisect import bisect_right
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


def _nodes(per_octave: int, octaves: int) -> list[int]:
    return sorted({round(2 ** (i / per_octave)) for i in range(per_octave * octaves + 1)})


STAIR_NODES, TOKEN_NODES = _nodes(2, 16), _nodes(1, 17)  # a product has more stairs than a pass over rows


class Held(NamedTuple):
    """What a curve must know of the power limit (`chip.predict.clock`)."""

    seconds: Callable[[Op, float], float]  # of an operator that takes so many seconds: those that it holds
    faster: float  # part of these that the boost clock saves
    slower: float  # part that the settled clock adds


class TimeCurve:
    """An operator's time along its tokens: known at nodes, which never fall, and following the base between them."""

    __slots__ = ("_base", "_nodes", "_raised", "_spans", "_straight")

    def __init__(
        self,
        make: Callable[[int], Op],
        points: Points,
        nodes: Sequence[int] = TOKEN_NODES,
        straight: bool = False,
        clocked: Callable[[Op, float], float] | None = None,
        held: Held | None = None,
    ) -> None:
        """`straight` between nodes: where the base has no stairs that would be missed. `clocked`: from the seconds of
        an operator at the clock of its points to those at the clock that the other points were timed at."""
        self._straight = straight
        self._base, self._nodes = points.base.over(make), nodes
        found = points.corrections([make(n).place() for n in nodes])
        bases = [self._base(n) for n in nodes]
        alone = [b * exp(c.value) for b, c in zip(bases, found)]
        if clocked:
            alone = [clocked(make(n), s) for n, s in zip(nodes, alone)]
        times = rising(alone)
        self._raised = [t > own * (1 + RAISED) for t, own in zip(times, alone)]
        ends = list(zip(nodes, times, [c.spread for c in found], bases, _held_s(make, nodes, times, held)))
        # of each node and the next: tokens, seconds and spread with what they grow by, the bases, and what is held
        self._spans = [
            (n, m - n, t, u - t, s, r - s, b, c, h, g - h)
            for (n, t, s, b, h), (m, u, r, c, g) in pairwise([*ends, ends[-1]])
        ]

    def at(self, tokens: int) -> tuple[float, float, float]:
        """Seconds, spread, and of the seconds those that the power limit holds."""
        nodes = self._nodes
        first, width, seconds, more_s, spread, wider, low, high, held_s, more_held_s = self._spans[
            bisect_right(nodes, tokens) - 1
        ]
        if tokens >= nodes[-1]:
            more = self._base(tokens) / low
            return seconds * more, spread, held_s * more
        share = (tokens - first) / width
        if not self._straight:
            share = share_of(self._base(tokens), low, high, share)
        return seconds + more_s * share, spread + wider * share, held_s + more_held_s * share

    def is_raised(self, tokens: int) -> bool:
        """Whether it takes longer than its own points say, because points of fewer tokens do."""
        low = bisect_right(self._nodes, tokens) - 1
        return any(self._raised[low : low + 2])


def _held_s(
    make: Callable[[int], Op], nodes: Sequence[int], times: Sequence[float], held: Held | None
) -> Sequence[float]:
    """At each node, so that times fall at no clock: neither where more is held than grew, nor where less is."""
    if held is None:
        return [0.0] * len(nodes)
    found: list[float] = []
    for i, (n, seconds) in enumerate(zip(nodes, times)):
        own = held.seconds(make(n), seconds)
        if i:
            more_s = seconds - times[i - 1]
            own = min(own, found[-1] + more_s / held.faster) if held.faster > 0 else own
            own = max(own, found[-1] - more_s / held.slower) if held.slower > 0 else own
        found.append(own)
    return found


def share_of(base: float, low: float, high: float, straight: float) -> float:
    """How far on the way between two nodes: as far as the base is, or the tokens where it does not grow."""
    if high <= low:
        return straight
    share = (base - low) / (high - low)
    return 0.0 if share < 0.0 else 1.0 if share > 1.0 else share
