"""The measured points nearest to one place, or to several that differ along one or two axes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from math import inf
from operator import itemgetter

NEAREST = 6
AXES = 3  # at most, that places may differ in
REMEMBERED = 64  # orders of lines, as heads of that many models need them
Place = tuple[float, ...]
Near = list[tuple[float, int]]  # squared distance and number of a point
Coordinated = tuple[float, float, float, int]  # coordinates on three axes, number
Line = tuple[list[Coordinated], list[float]]  # in the order of the first axis, and coordinates on that
Order = list[tuple[float, Line]]  # lines with their squared distance, nearest first


class PointBlock:
    """Points: their coordinates by axis."""

    __slots__ = ("_lines", "_most", "columns")

    def __init__(self, places: Sequence[Place]) -> None:
        self.columns: list[Place] = list(zip(*places))
        by_values = sorted(range(len(self.columns)), key=lambda a: -len({*self.columns[a]}))
        self._most = tuple(by_values[: min(max(1, len(by_values) - 2), AXES)])  # the axes that most points differ in
        self._lines: dict[tuple[int, ...], PointLines] = {}

    def nearest(self, places: Sequence[Place], moving: Sequence[int], but: int = -1) -> list[Near]:
        """The nearest points of each place, nearest first. `moving`: the axes that places differ in, at most three.
        `but`: a point to leave out."""
        axes = self._most if {*moving} <= {*self._most} else tuple(moving)
        found = self._lines.get(axes)
        if found is None:
            found = self._lines[axes] = PointLines(self, axes)
        return found.nearest(places, but)


class PointLines:
    """The same in lines (planes, spaces) of points that are alike but for one axis (two, three), for places that differ
    in just those: how far a line is away is worked out once for all of them."""

    __slots__ = ("_columns", "_ends", "_lines", "_moving", "_orders", "_shared")

    def __init__(self, block: PointBlock, moving: tuple[int, ...]) -> None:
        columns, none = block.columns, [0.0] * len(block.columns[0])
        self._ends = {a: (min(columns[a]), max(columns[a])) for a in moving}
        self._moving = sorted(moving, key=lambda a: self._ends[a][0] - self._ends[a][1])
        self._shared = [a for a in range(len(columns)) if a not in moving]
        along = [columns[a] for a in self._moving] + [none] * (AXES - len(moving))
        alike: dict[Place, list[Coordinated]] = {}
        for i, (x, y, z) in enumerate(zip(*along)):
            line = tuple([columns[a][i] for a in self._shared])
            alike.setdefault(line, []).append((x, y, z, i))
        self._columns: list[Place] = list(zip(*alike))
        self._lines: list[Line] = [(line, [x for x, *_ in line]) for line in map(sorted, alike.values())]
        self._orders: dict[Place, Order] = {}

    def nearest(self, places: Sequence[Place], but: int) -> list[Near]:
        order = self._order(tuple([places[0][a] for a in self._shared]))
        return [_of_lines(order, *self._at(place), but) for place in places]

    def _order(self, at: Place) -> Order:
        found = self._orders.get(at)
        if found is None:
            apart = [0.0] * len(self._lines)
            for column, x in zip(self._columns, at):
                apart = [d2 + (u - x) * (u - x) for d2, u in zip(apart, column)]
            found = sorted(zip(apart, self._lines), key=itemgetter(0))
            if len(self._orders) >= REMEMBERED:
                self._orders.clear()
            self._orders[at] = found
        return found

    def _at(self, place: Place) -> tuple[float, float, float, float]:
        """Where it lies along its own axes, and the squared distance that every point is away at least."""
        at = [place[a] for a in self._moving]
        off = [max(place[a] - most, least - place[a], 0.0) for a, (least, most) in self._ends.items()]
        x, y, z = at + [0.0] * (AXES - len(at))
        return x, y, z, sum([d * d for d in off])


def _of_lines(order: Order, at_x: float, at_y: float, at_z: float, beyond: float, but: int) -> Near:
    best: Near = []
    worst = inf
    for off, (points, xs) in order:
        if off + beyond > worst:
            break
        middle = bisect_left(xs, at_x)
        for side in range(middle, len(points)), range(middle - 1, -1, -1):
            for i in side:
                x, y, z, number = points[i]
                d2 = off + (x - at_x) * (x - at_x)
                if d2 > worst:
                    break
                d2 += (y - at_y) * (y - at_y) + (z - at_z) * (z - at_z)
                if d2 <= worst and number != but:
                    insort(best, (d2, number))
                    if len(best) > NEAREST:
                        best.pop()
                    if len(best) == NEAREST:
                        worst = best[-1][0]
    return best
