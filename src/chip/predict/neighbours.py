"""The measured points nearest to one place, or to several that differ along one or two axes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from math import inf, sqrt
from operator import itemgetter

NEAREST = 6
FAR = 1e9  # squared distance of what does not count
WIDER, LEAST_REACH = 1.25, 0.01  # than the last place's nearest lay: how far the next one's are looked for first
Place = tuple[float, ...]
Near = list[tuple[float, float, float]]  # squared distance, residual, variance
Coordinated = tuple[float, float, float, float]  # coordinates on two axes, residual, variance
Line = tuple[list[Coordinated], list[float]]  # in the order of the first axis, and coordinates on that


class PointBlock:
    """Points: their coordinates by axis, and what they say."""

    __slots__ = ("_lines", "_sorted", "columns", "residuals", "variances")

    def __init__(self, places: Sequence[Place], residuals: Sequence[float], variances: Sequence[float]) -> None:
        self.columns: list[Place] = list(zip(*places))
        self.residuals, self.variances = residuals, variances
        self._sorted: SortedPoints | None = None
        self._lines: dict[tuple[int, ...], PointLines] = {}  # by the axes that places differ in

    def nearest(self, places: Sequence[Place], moving: Sequence[int], but: int = -1) -> list[Near]:
        """The nearest points of each place, nearest first. `moving`: the axes that places differ in, at most two."""
        if not moving:
            if self._sorted is None:
                self._sorted = SortedPoints(self)
            return [self._sorted.nearest(places[0], but)]
        axes = tuple(moving)
        if axes not in self._lines:
            self._lines[axes] = PointLines(self, axes)
        return self._lines[axes].nearest(places)


class PointLines:
    """The same in lines (or planes) of points that are alike but for one axis or two, for places that differ in just
    those: how far a line is away is worked out once for all of them."""

    __slots__ = ("_columns", "_ends", "_lines", "_moving", "_shared")

    def __init__(self, block: PointBlock, moving: tuple[int, ...]) -> None:
        self._moving, columns = moving, block.columns
        self._shared = [a for a in range(len(columns)) if a not in moving]
        one, other = columns[moving[0]], columns[moving[-1]] if len(moving) > 1 else [0.0] * len(block.residuals)
        alike: dict[Place, list[Coordinated]] = {}
        for i, point in enumerate(zip(one, other, block.residuals, block.variances)):
            alike.setdefault(tuple([columns[a][i] for a in self._shared]), []).append(point)
        self._columns: list[Place] = list(zip(*alike))
        self._lines = [(line, [x for x, _, _, _ in line]) for line in map(sorted, alike.values())]
        self._ends = [(min(columns[a]), max(columns[a])) for a in moving]

    def nearest(self, places: Sequence[Place]) -> list[Near]:
        apart = [0.0] * len(self._lines)  # squared distance along the axes that all places share, two at a time
        shared = [(c, places[0][a]) for a, c in zip(self._shared, self._columns)]
        for (xs, x), (ys, y) in zip(shared[::2], shared[1::2]):
            apart = [d2 + (u - x) * (u - x) + (v - y) * (v - y) for d2, u, v in zip(apart, xs, ys)]
        if len(shared) % 2:
            last, x = shared[-1]
            apart = [d2 + (u - x) * (u - x) for d2, u in zip(apart, last)]
        order = sorted(zip(apart, self._lines), key=itemgetter(0))
        return [_of_lines(order, *self._at(place)) for place in places]

    def _at(self, place: Place) -> tuple[float, float, float]:
        """Where it lies along the one axis or two, and the squared distance that every point is away at least."""
        at = [place[a] for a in self._moving]
        off = [max(x - most, least - x, 0.0) for x, (least, most) in zip(at, self._ends)]
        return at[0], at[1] if len(at) > 1 else 0.0, sum([d * d for d in off])


def _of_lines(order: Sequence[tuple[float, Line]], at_x: float, at_y: float, beyond: float) -> Near:
    """`order`: lines with their squared distance, nearest first, so that the search can stop."""
    best: Near = []
    worst = inf
    for off, (points, xs) in order:
        if off + beyond > worst:
            break
        middle = bisect_left(xs, at_x)
        for side in range(middle, len(points)), range(middle - 1, -1, -1):
            for i in side:
                x, y, residual, variance = points[i]
                along = (x - at_x) * (x - at_x)
                if off + along > worst:
                    break
                d2 = off + (along + (y - at_y) * (y - at_y))
                if d2 <= worst:
                    insort(best, (d2, residual, variance))
                    if len(best) > NEAREST:
                        best.pop()
                    if len(best) == NEAREST:
                        worst = best[-1][0]
    return best


class SortedPoints:
    """The same in the order of the axis that they are spread along most: the nearest of one place lie close on it."""

    __slots__ = ("_axes", "_columns", "_order", "_reach", "_residuals", "_variances")

    def __init__(self, block: PointBlock) -> None:
        spread = sorted(range(len(block.columns)), key=lambda a: min(block.columns[a]) - max(block.columns[a]))
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
