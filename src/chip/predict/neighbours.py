"""The measured points nearest to one place, or to several that differ along one or two axes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from math import inf
from operator import itemgetter

NEAREST = 6
Place = tuple[float, ...]
Near = list[tuple[float, float, float]]  # squared distance, residual, variance
Coordinated = tuple[float, float, float, float, int]  # coordinates on two axes, residual, variance, number
Line = tuple[list[Coordinated], list[float]]  # in the order of the first axis, and coordinates on that


class PointBlock:
    """Points: their coordinates by axis, and what they say."""

    __slots__ = ("_lines", "_most", "columns", "residuals", "variances")

    def __init__(self, places: Sequence[Place], residuals: Sequence[float], variances: Sequence[float]) -> None:
        self.columns: list[Place] = list(zip(*places))
        self.residuals, self.variances = residuals, variances
        by_values = sorted(range(len(self.columns)), key=lambda a: -len({*self.columns[a]}))
        self._most = tuple(sorted(by_values[:2]))  # the axes that most points differ in
        self._lines: dict[tuple[int, ...], PointLines] = {}

    def nearest(self, places: Sequence[Place], moving: Sequence[int], but: int = -1) -> list[Near]:
        """The nearest points of each place, nearest first. `moving`: the axes that places differ in, at most two.
        `but`: a point to leave out."""
        axes = tuple(moving) or self._most
        found = self._lines.get(axes)
        if found is None:
            found = self._lines[axes] = PointLines(self, axes)
        return found.nearest(places, but)


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
            alike.setdefault(tuple([columns[a][i] for a in self._shared]), []).append((*point, i))
        self._columns: list[Place] = list(zip(*alike))
        self._lines = [(line, [x for x, *_ in line]) for line in map(sorted, alike.values())]
        self._ends = [(min(columns[a]), max(columns[a])) for a in moving]

    def nearest(self, places: Sequence[Place], but: int) -> list[Near]:
        apart = [0.0] * len(self._lines)  # squared distance along the axes that all places share, two at a time
        shared = [(c, places[0][a]) for a, c in zip(self._shared, self._columns)]
        for (xs, x), (ys, y) in zip(shared[::2], shared[1::2]):
            apart = [d2 + (u - x) * (u - x) + (v - y) * (v - y) for d2, u, v in zip(apart, xs, ys)]
        if len(shared) % 2:
            last, x = shared[-1]
            apart = [d2 + (u - x) * (u - x) for d2, u in zip(apart, last)]
        order = sorted(zip(apart, self._lines), key=itemgetter(0))
        return [_of_lines(order, *self._at(place), but) for place in places]

    def _at(self, place: Place) -> tuple[float, float, float]:
        """Where it lies along the one axis or two, and the squared distance that every point is away at least."""
        at = [place[a] for a in self._moving]
        off = [max(x - most, least - x, 0.0) for x, (least, most) in zip(at, self._ends)]
        return at[0], at[1] if len(at) > 1 else 0.0, sum([d * d for d in off])


def _of_lines(order: Sequence[tuple[float, Line]], at_x: float, at_y: float, beyond: float, but: int) -> Near:
    """`order`: lines with their squared distance, nearest first, so that the search can stop."""
    best: Near = []
    worst = inf
    for off, (points, xs) in order:
        if off + beyond > worst:
            break
        middle = bisect_left(xs, at_x)
        for side in range(middle, len(points)), range(middle - 1, -1, -1):
            for i in side:
                x, y, residual, variance, number = points[i]
                along = (x - at_x) * (x - at_x)
                if off + along > worst:
                    break
                d2 = off + (along + (y - at_y) * (y - at_y))
                if d2 <= worst and number != but:
                    insort(best, (d2, residual, variance))
                    if len(best) > NEAREST:
                        best.pop()
                    if len(best) == NEAREST:
                        worst = best[-1][0]
    return best
