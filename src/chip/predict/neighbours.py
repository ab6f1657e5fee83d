"""The measured points nearest to one place, or to several that differ along one or two axes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from math import sqrt

NEAREST = 6
FAR = 1e9  # squared distance of what does not count
WIDER, LEAST_REACH = 1.25, 0.01  # than the last place's nearest lay: how far the next one's are looked for first
Place = tuple[float, ...]
Near = list[tuple[float, float, float]]  # squared distance, residual, variance
Coordinated = tuple[float, float, float, float]  # coordinates on two axes, residual, variance


class PointBlock:
    """Points: their coordinates by axis, and what they say."""

    __slots__ = ("_said", "_sorted", "_within", "columns", "ends", "residuals", "variances")

    def __init__(self, places: Sequence[Place], residuals: Sequence[float], variances: Sequence[float]) -> None:
        self.columns: list[Place] = list(zip(*places))
        self.ends = [(min(c), max(c)) for c in self.columns]  # of each axis
        self.residuals, self.variances = residuals, variances
        self._sorted: SortedPoints | None = None
        self._within = FAR  # of the last places: the next ones' are about as much
        self._said: dict[tuple[int, int], list[Coordinated]] = {}  # by the axes that places differ in

    def _beyond(self, axis: int, at: float) -> float:
        """Squared distance along an axis that every point is away at least."""
        least, most = self.ends[axis]
        off = max(at - most, least - at, 0.0)
        return off * off

    def nearest(self, places: Sequence[Place], moving: Sequence[int], but: int = -1) -> list[Near]:
        """The nearest points of each place, nearest first."""
        if not moving:
            if self._sorted is None:
                self._sorted = SortedPoints(self)
            return [self._sorted.nearest(places[0], but)]
        apart = [0.0] * len(self.residuals)  # squared distance along the axes that all places share, two at a time
        shared = [(c, at) for a, (c, at) in enumerate(zip(self.columns, places[0])) if a not in moving]
        for (xs, x), (ys, y) in zip(shared[::2], shared[1::2]):
            apart = [d2 + (u - x) * (u - x) + (v - y) * (v - y) for d2, u, v in zip(apart, xs, ys)]
        if len(shared) % 2:
            last, x = shared[-1]
            apart = [d2 + (u - x) * (u - x) for d2, u in zip(apart, last)]
        one, other = moving[0], moving[-1]
        if (one, other) not in self._said:
            others: Sequence[float] = self.columns[other] if one != other else [0.0] * len(apart)
            self._said[one, other] = list(zip(self.columns[one], others, self.residuals, self.variances))
        beyond = [sum([self._beyond(a, p[a]) for a in moving]) for p in places]
        wanted = [(p[one], p[other] if one != other else 0.0) for p in places]
        within = self._within  # how far apart those are that count, at most
        while True:
            order = sorted([i for i, d2 in enumerate(apart) if d2 <= within], key=apart.__getitem__)
            found = [_along(order, apart, self._said[one, other], where, off) for where, off in zip(wanted, beyond)]
            all_near = min(NEAREST, len(apart))
            needed = max([near[-1][0] - off if len(near) == all_near else FAR for near, off in zip(found, beyond)])
            if needed <= within or len(order) == len(apart):
                self._within = WIDER * WIDER * needed
                return found
            within = needed


class SortedPoints:
    """The same in the order of the axis that they are spread along most: the nearest of one place lie close on it."""

    __slots__ = ("_axes", "_columns", "_order", "_reach", "_residuals", "_variances")

    def __init__(self, block: PointBlock) -> None:
        spread = sorted(range(len(block.ends)), key=lambda a: block.ends[a][0] - block.ends[a][1])
        self._axes = (*spread, *spread, *spread)[:3]
        self._order = sorted(range(len(block.residuals)), key=block.columns[self._axes[0]].__getitem__)
        self._columns = [[c[i] for i in self._order] for c in block.columns]
        self._residuals, self._variances = ([c[i] for i in self._order] for c in (block.residuals, block.variances))
        self._reach = 1.0  # of the last place: its neighbour's is about as much

    def nearest(self, place: Sequence[float], but: int) -> Near:
        reach, wanted = self._reach, min(NEAREST, len(self._order))
        while len(near := self._within(reach, place, but)) < wanted:
            reach *= 2
        self._reach = max(LEAST_REACH, WIDER * sqrt(near[-1][0]))
        return near

    def _within(self, reach: float, place: Sequence[float], but: int) -> Near:
        """Those that lie no further away, at most as many as count."""
        (xs, ys, zs), (x, y, z) = [self._columns[a] for a in self._axes], [place[a] for a in self._axes]
        first, last = bisect_left(xs, x - reach), bisect_right(xs, x + reach)
        y_low, y_high, z_low, z_high = y - reach, y + reach, z - reach, z + reach
        close = zip(range(first, last), ys[first:last], zs[first:last])
        among = [i for i, v, w in close if y_low <= v <= y_high and z_low <= w <= z_high]
        apart = [0.0] * len(among)
        for at, column in zip(place, self._columns):
            apart = [d2 + (x - at) * (x - at) for d2, x in zip(apart, [column[i] for i in among])]
        if but >= 0 and (left_out := self._order.index(but)) in among:
            apart[among.index(left_out)] = FAR
        worst = min([reach * reach, *sorted(apart)[NEAREST - 1 : NEAREST]])
        near = [(d2, self._residuals[i], self._variances[i]) for d2, i in zip(apart, among) if d2 <= worst]
        return sorted(near)[:NEAREST]


def _along(
    order: Sequence[int], apart: Sequence[float], points: Sequence[Coordinated], at: tuple[float, float], beyond: float
) -> Near:
    """Along two axes, where all are `beyond` away at least. `order`: nearest first along the others, which they are
    `apart` on, so that the search can stop."""
    best: Near = []
    worst = FAR
    at_x, at_y = at
    for i in order:
        off = apart[i]
        if off + beyond >= worst:
            break
        x, y, residual, variance = points[i]
        d2 = off + ((x - at_x) * (x - at_x) + (y - at_y) * (y - at_y))
        if d2 < worst:
            insort(best, (d2, residual, variance))
            if len(best) > NEAREST:
                best.pop()
                worst = best[-1][0]
    return best
