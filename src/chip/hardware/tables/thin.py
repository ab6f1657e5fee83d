"""Fewer points: along one axis, drop what linear interpolation in logarithms between the points kept gives anyway."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from math import log

from chip import stats
from chip.hardware.tables.points_csv import Row

LogPoint = tuple[float, float]


def kept(points: Sequence[LogPoint], tolerance: float) -> list[int]:
    """Indices of the points to keep, first and last among them: the one that is farthest off is added until all that
    are left out lie within `tolerance` (0.02: 2 %) of the line between their neighbours."""
    wanted, bound = {0, len(points) - 1}, log(1 + tolerance)
    spans = [(0, len(points) - 1)]
    while spans:
        a, b = spans.pop()
        (xa, ya), (xb, yb) = points[a], points[b]
        worst, at = bound, 0
        for i in range(a + 1, b):
            x, y = points[i]
            off = abs(ya + (yb - ya) * (x - xa) / (xb - xa) - y)
            if off > worst:
                worst, at = off, i
        if at:
            wanted.add(at)
            spans += [(a, at), (at, b)]
    return sorted(wanted)


def thin(rows: Sequence[Row], axis: int, tolerance: float, tied: Collection[int] = ()) -> list[Row]:
    """Every curve along `axis` (all else equal, but for the `tied` axes, which move with it) with only the points that
    its shape needs."""
    curves: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        fixed = (value for i, value in enumerate(row.at) if i != axis and i not in tied)
        curves[(*row.labels, *fixed)].append(row)
    out = []
    for curve in curves.values():
        curve.sort(key=lambda r: r.at[axis])
        out += [curve[i] for i in kept([(log(r.at[axis]), log(r.us)) for r in curve], tolerance)]
    return out


def merged(rows: Sequence[Row]) -> list[Row]:
    """One row for each shape: the median where it was measured several times."""
    same: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        same[(*row.labels, *row.at)].append(row)
    return [found[0]._replace(us=stats.median([r.us for r in found])) for found in same.values()]
