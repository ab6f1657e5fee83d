"""The measured points nearest to a place: a tree that halves them along the axis on which they lie farthest apart."""

from __future__ import annotations

from collections.abc import Sequence
from math import dist
from typing import Any

NEAREST = 6
LEAF = 16  # points that are not halved any further
Place = tuple[float, ...]


class NearestPoints:
    def __init__(self, places: Sequence[Place]) -> None:
        self._tree = _tree([(place, i) for i, place in enumerate(places)])

    def of(self, place: Place, but: int = -1) -> list[tuple[float, int]]:
        """Distances and indices of the nearest points, nearest first. `but`: the index of a point to leave out."""
        best: list[tuple[float, int]] = []
        worst, left = float("inf"), [(0.0, self._tree)]
        while left:
            least, node = left.pop()
            if least > worst:
                continue
            if isinstance(node, list):
                best = sorted([*best, *((dist(place, other), i) for other, i in node if i != but)])[:NEAREST]
                worst = best[-1][0] if len(best) == NEAREST else worst
            else:
                axis, cut, below, above = node
                off = place[axis] - cut
                near, far = (below, above) if off < 0 else (above, below)
                left += [(max(least, abs(off)), far), (least, near)]
        return best


def _tree(points: list[tuple[Place, int]]) -> Any:
    """A leaf's points, or an axis, where it is cut, and the trees below and above."""
    spans = [max(column) - min(column) for column in zip(*(place for place, _ in points))]
    axis = spans.index(max(spans))
    if len(points) <= LEAF or not spans[axis]:
        return points
    points = sorted(points, key=lambda point: point[0][axis])
    half = len(points) // 2
    return axis, points[half][0][axis], _tree(points[:half]), _tree(points[half:])
