"""The measured points nearest to a place, or to each of several places that differ along one or two axes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from math import inf
from operator import itemgetter

NEAREST = 6
AXES = 3  # at most, that places may differ in
REMEMBERED = 64  # sorted lists of groups: as many as models with other heads
Place = tuple[float, ...]
Near = list[tuple[float, int]]  # squared distance and index of a point
PlacedPoint = tuple[float, float, float, int]  # coordinates on three axes, index
Group = tuple[list[PlacedPoint], list[float]]  # points sorted by the first axis, and their coordinates on it
Sorted = list[tuple[float, Group]]  # groups with their squared distance, nearest first


class PointBlock:
    """All points, searched by way of `GroupedPoints`."""

    __slots__ = ("_grouped", "_most", "columns")

    def __init__(self, places: Sequence[Place]) -> None:
        self.columns: list[Place] = list(zip(*places))
        by_values = sorted(range(len(self.columns)), key=lambda a: -len({*self.columns[a]}))
        self._most = tuple(by_values[: min(max(1, len(by_values) - 2), AXES)])  # the axes with most values
        self._grouped: dict[tuple[int, ...], GroupedPoints] = {}

    def nearest(self, places: Sequence[Place], moving: Sequence[int], but: int = -1) -> list[Near]:
        """The nearest points of each place, nearest first. `moving`: the axes that places differ in, at most three.
        `but`: a point to leave out."""
        axes = self._most if {*moving} <= {*self._most} else tuple(moving)
        found = self._grouped.get(axes)
        if found is None:
            found = self._grouped[axes] = GroupedPoints(self.columns, axes)
        return found.nearest(places, but)


class GroupedPoints:
    """Points in groups: those of a group differ along the moving axes only, and share all other coordinates. Places
    that differ along these axes only are equally far from a group along the others. So groups are sorted by distance
    once for all such places."""

    __slots__ = ("_columns", "_ends", "_groups", "_moving", "_shared", "_sorted")

    def __init__(self, columns: Sequence[Place], moving: tuple[int, ...]) -> None:
        none = [0.0] * len(columns[0])
        self._ends = {a: (min(columns[a]), max(columns[a])) for a in moving}
        self._moving = sorted(moving, key=lambda a: self._ends[a][0] - self._ends[a][1])
        self._shared = [a for a in range(len(columns)) if a not in moving]
        along = [columns[a] for a in self._moving] + [none] * (AXES - len(moving))
        alike: dict[Place, list[PlacedPoint]] = {}
        for i, (x, y, z) in enumerate(zip(*along)):
            shared = tuple([columns[a][i] for a in self._shared])
            alike.setdefault(shared, []).append((x, y, z, i))
        self._columns: list[Place] = list(zip(*alike))  # of the shared axes: a coordinate for each group
        self._groups: list[Group] = [(points, [x for x, *_ in points]) for points in map(sorted, alike.values())]
        self._sorted: dict[Place, Sorted] = {}

    def nearest(self, places: Sequence[Place], but: int) -> list[Near]:
        groups = self._by_distance(tuple([places[0][a] for a in self._shared]))
        return [_search(groups, *self._moving_part(place), but) for place in places]

    def _by_distance(self, shared: Place) -> Sorted:
        found = self._sorted.get(shared)
        if found is None:
            apart = [0.0] * len(self._groups)
            for column, x in zip(self._columns, shared):
                apart = [d2 + (u - x) * (u - x) for d2, u in zip(apart, column)]
            if len(self._sorted) >= REMEMBERED:
                self._sorted.clear()
            found = self._sorted[shared] = sorted(zip(apart, self._groups), key=itemgetter(0))
        return found

    def _moving_part(self, place: Place) -> tuple[float, float, float, float]:
        """Its coordinates along the moving axes, and the squared distance along these that every point has at least."""
        along = [place[a] for a in self._moving]
        off = [max(place[a] - most, least - place[a], 0.0) for a, (least, most) in self._ends.items()]
        x, y, z = along + [0.0] * (AXES - len(along))
        return x, y, z, sum([d * d for d in off])


def _search(groups: Sorted, at_x: float, at_y: float, at_z: float, beyond: float, but: int) -> Near:
    """In each group from the place outwards along the first axis, until nothing nearer can come."""
    best: Near = []
    worst = inf
    for off, (points, xs) in groups:
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
