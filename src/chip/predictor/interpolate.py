"""The one interpolator: what measured points say of an operator's base time.

seconds = base x exp(correction). The correction is the mean of log(measured / base) over the nearest points, weighted
by their distance in logarithmic coordinates (`Op.place`). Its spread comes from the leave-one-out errors of these
points: how far off the same rule is when it predicts them from all others. Beyond the points the last correction is
kept and the spread grows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import dist, exp, log, sqrt
from typing import Any, NamedTuple

from chip.hardware.points import PointGroup
from chip.ops import BaseTime
from chip.types import Op

NOISE = 0.02  # squared distance within which points count alike
LEAST_SPREAD = 0.02
REACH = 0.5  # distance to the nearest point above which the spread grows
GROWTH = 0.05  # of the spread, for each further 1 of distance
UNKNOWN_SPREAD = 0.15  # of points without a leave-one-out error
Z90 = 1.645  # standard deviations that hold 90 % of a normal error
# What is remembered, so that a sweep of any length runs in bounded memory: curves of a group, and nodes of a curve.
MOST_CURVES, MOST_NODES = 256, 4096

NEAREST = 6
LEAF = 16  # points that are not halved any further
Place = tuple[float, ...]  # logarithmic coordinates (`Op.place`)


class Correction(NamedTuple):
    value: float  # added to the logarithm of the base time
    spread: float  # standard deviation of that logarithm


class TimedPoint(NamedTuple):
    seconds: float
    spread: float


class Points:
    """A group of measured points with their base time, from which times of other sizes are interpolated."""

    def __init__(self, group: PointGroup, base: BaseTime) -> None:
        self.base, self.imported = base, group.imported
        self.places = [op.place() for op in group.ops]
        self._group, self._nearest = group, NearestPoints(self.places)
        self._residuals: dict[int, tuple[float, float]] = {}
        self._curves: dict[Hashable, CorrectionCurve] = {}

    def seconds(self, op: Op) -> TimedPoint:
        """The interpolated time of one operator."""
        value, spread = self.correction(op.place())
        return TimedPoint(self.base.seconds(op) * exp(value), spread)

    def correction(self, place: Place, but: int = -1) -> Correction:
        """`but`: the index of a point to leave out."""
        near = self._nearest.of(place, but)
        total = value = variance = 0.0
        for apart, point in near:
            weight = 1 / (apart * apart + NOISE)
            residual, squared_error = self.residual(point)
            total += weight
            value += weight * residual
            variance += weight * squared_error
        beyond = max(0.0, near[0][0] - REACH)
        return Correction(value / total, max(LEAST_SPREAD, sqrt(variance / total)) + GROWTH * beyond)

    def residual(self, point: int) -> tuple[float, float]:
        """A point's log(measured / base) and its variance, worked out when first asked for."""
        if point not in self._residuals:
            op, seconds, loo = self._group.ops[point], self._group.seconds[point], self._group.loo
            error = loo[point] if loo else UNKNOWN_SPREAD
            self._residuals[point] = log(seconds / self.base.seconds(op)), log(1 + error) ** 2
        return self._residuals[point]

    def curve(self, key: Hashable, place: Callable[..., Place]) -> CorrectionCurve:
        """Corrections over the sizes that `place` takes; `key` names it, so that all models share what is the same."""
        if key not in self._curves:
            if len(self._curves) >= MOST_CURVES:
                self._curves.clear()
            self._curves[key] = CorrectionCurve(self, place)
        return self._curves[key]


class CorrectionCurve:
    """Corrections over one or more sizes: worked out at powers of two, straight between them."""

    __slots__ = ("_nodes", "_place", "_points")

    def __init__(self, points: Points, place: Callable[..., Place]) -> None:
        self._points, self._place = points, place
        self._nodes: dict[tuple[int, ...], Correction] = {}

    def at(self, sizes: tuple[int, ...]) -> Correction:
        corners: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
        for size in sizes:
            power = 1 << size.bit_length() - 1
            if size == power:
                corners = [((*corner, power), share) for corner, share in corners]
            else:
                above, double = size / power - 1, 2 * power
                corners = [((*corner, power), share * (1 - above)) for corner, share in corners] + [
                    ((*corner, double), share * above) for corner, share in corners
                ]
        value = spread = 0.0
        for corner, share in corners:
            node = self._nodes.get(corner) or self._node(corner)
            value += share * node[0]
            spread += share * node[1]
        return Correction(value, spread)

    def _node(self, powers: tuple[int, ...]) -> Correction:
        if len(self._nodes) >= MOST_NODES:
            self._nodes.clear()
        node = self._nodes[powers] = self._points.correction(self._place(*powers))
        return node


class NearestPoints:
    """A tree that halves points along the axis on which they lie farthest apart."""

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
