"""The one interpolator: an operator's base time, corrected by what its nearest measured points say.

seconds = base x exp(correction), where the correction is the mean of log(measured / base) of the nearest points,
weighted by their distance in logarithmic coordinates (`Op.place`). Its spread is what the same rule gets wrong where it
predicts those points from the others. Beyond the points the last correction goes on, and the spread grows.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from heapq import nsmallest
from math import exp, log, sqrt
from typing import NamedTuple

from chip.ops.base_time import BaseTime
from chip.points import Group
from chip.types import Op

NEAREST = 6
NOISE = 0.02  # squared distance within which points count alike
LEAST_SPREAD = 0.02
REACH = 1.0  # distance to the nearest point from which on the spread grows, ...
GROWTH = 0.1  # ... by so much for each more
UNKNOWN_SPREAD = 0.15  # of points that nobody judged by the others
Z90 = 1.645  # standard deviations that hold 90 % of a normal error
FAR = 1e9  # squared distance of what does not count
MOST_ROWS = 256  # of a sheet: a sweep of any length runs in bounded memory


class Correction(NamedTuple):
    value: float  # of the logarithm of the time
    spread: float  # its standard deviation


class Timed(NamedTuple):
    seconds: float
    spread: float


class Points:
    """A group of measured points, ready to be asked."""

    def __init__(self, group: Group, base: BaseTime) -> None:
        self.base = base
        self.places = [op.place() for op in group.ops]
        self.residuals = [log(s / base.seconds(op)) for op, s in zip(group.ops, group.seconds)]
        loo = group.loo or (UNKNOWN_SPREAD,) * len(group.ops)
        self.variances = [log(1 + e) ** 2 for e in loo]
        self._columns = list(zip(*self.places))  # by axis

    def seconds(self, op: Op) -> Timed:
        found = self.corrections([op.place()])[0]
        return Timed(self.base.seconds(op) * exp(found.value), found.spread)

    def corrections(self, places: Sequence[tuple[float, ...]], but: int = -1) -> list[Correction]:
        """Of several places, which mostly share all coordinates but one or two. `but`: a point to leave out."""
        first, last = places[0], places[-1]
        moving = [a for a in range(len(first)) if first[a] != last[a]]
        apart = [0.0] * len(self.places)  # squared distance along the axes that all places share
        for a, column in enumerate(self._columns):
            if a not in moving:
                at = first[a]
                apart = [d2 + (x - at) * (x - at) for d2, x in zip(apart, column)]
        if but >= 0:
            apart[but] = FAR
        if not moving:
            return [_mean(nsmallest(NEAREST, zip(apart, self.residuals, self.variances)))]
        order = sorted(range(len(apart)), key=apart.__getitem__)
        held = (apart, *(self._columns[a] for a in moving), self.residuals, self.variances)
        rows = list(zip(*([column[i] for i in order] for column in held)))
        search = _nearest_along if len(moving) == 1 else _nearest
        return [_mean(search(rows, [p[a] for a in moving])) for p in places]


Near = list[tuple[float, float, float]]  # squared distance, residual, variance


def _nearest_along(rows: Sequence[tuple[float, ...]], at: Sequence[float]) -> Near:
    """Along one axis. `rows` come nearest first along the others, so that the search can stop."""
    best: Near = []
    worst, (there,) = FAR, at
    for apart, x, residual, variance in rows:
        if apart >= worst:
            break
        d2 = apart + (x - there) * (x - there)
        if d2 < worst:
            insort(best, (d2, residual, variance))
            if len(best) > NEAREST:
                best.pop()
                worst = best[-1][0]
    return best


def _nearest(rows: Sequence[tuple[float, ...]], at: Sequence[float]) -> Near:
    """The same along several axes."""
    best: Near = []
    worst = FAR
    for apart, *x, residual, variance in rows:
        if apart >= worst:
            break
        d2 = apart + sum([(a - b) * (a - b) for a, b in zip(x, at)])
        if d2 < worst:
            insort(best, (d2, residual, variance))
            if len(best) > NEAREST:
                best.pop()
                worst = best[-1][0]
    return best


def _mean(near: Near) -> Correction:
    weights = [1 / (d2 + NOISE) for d2, _, _ in near]
    total = sum(weights)
    value = sum([w * r for w, (_, r, _) in zip(weights, near)]) / total
    variance = sum([w * v for w, (_, _, v) in zip(weights, near)]) / total
    beyond = max(0.0, sqrt(near[0][0]) - REACH)
    return Correction(value, max(LEAST_SPREAD, sqrt(variance)) + GROWTH * beyond)


def _nodes(per_octave: int, octaves: int) -> list[int]:
    return sorted({round(2 ** (i / per_octave)) for i in range(per_octave * octaves + 1)})


PRODUCT_NODES, TOKEN_NODES = _nodes(2, 16), _nodes(1, 17)  # a product has more stairs than a pass over rows


class Curve:
    """An operator's time along its tokens: known at nodes, which never fall, and following the base between them."""

    __slots__ = ("_base", "_bases", "_make", "_nodes", "_spreads", "_straight", "_times")

    def __init__(
        self,
        make: Callable[[int], Op],
        points: Points,
        nodes: Sequence[int] = TOKEN_NODES,
        straight: bool = False,
    ) -> None:
        """`straight` between nodes: where the base has no stairs that would be missed."""
        self._straight = straight
        made = [make(n) for n in nodes]
        self._make, self._base, self._nodes = make, points.base.seconds, nodes
        found = points.corrections([op.place() for op in made])
        self._bases = [points.base.seconds(op) for op in made]
        self._times = _rising([b * exp(c.value) for b, c in zip(self._bases, found)])
        self._spreads = [c.spread for c in found]

    def __call__(self, tokens: int) -> Timed:
        nodes = self._nodes
        if tokens >= nodes[-1]:
            grown = self._base(self._make(tokens)) / self._bases[-1]
            return Timed(self._times[-1] * grown, self._spreads[-1])
        low = bisect_right(nodes, tokens) - 1
        high = low + 1
        if nodes[low] == tokens:
            return Timed(self._times[low], self._spreads[low])
        share = (tokens - nodes[low]) / (nodes[high] - nodes[low])
        if not self._straight:
            share = _share(self._base(self._make(tokens)), self._bases[low], self._bases[high], share)
        seconds = self._times[low] + (self._times[high] - self._times[low]) * share
        return Timed(seconds, self._spreads[low] + (self._spreads[high] - self._spreads[low]) * share)


def _share(base: float, low: float, high: float, straight: float) -> float:
    """How far on the way between two nodes: as far as the base is, or the tokens where it does not grow."""
    if high <= low:
        return straight
    return min(1.0, max(0.0, (base - low) / (high - low)))


def _rising(times: Sequence[float]) -> list[float]:
    """The times made to never fall: between the largest so far and the least to come, halfway."""
    above, below = [], []
    most, least = 0.0, float("inf")
    for t in times:
        most = max(most, t)
        above.append(most)
    for t in reversed(times):
        least = min(least, t)
        below.append(least)
    return [sqrt(a * b) for a, b in zip(above, reversed(below))]


def _own_place(op: Op) -> tuple[float, ...]:
    return op.place()


class Sheet:
    """An operator's time over two sizes, such as sequences and context: as a curve, its nodes found when needed. Along
    the second size times never fall."""

    __slots__ = ("_make", "_place", "_points", "_rows")

    def __init__(
        self, make: Callable[[int, int], Op], points: Points, place: Callable[[Op], tuple[float, ...]] | None = None
    ) -> None:
        """`place`: where its nodes lie among the points, instead of where they say themselves."""
        self._make, self._points, self._place = make, points, place or _own_place
        self._rows: dict[int, list[tuple[float, float]]] = {}

    def __call__(self, count: int, length: int) -> Timed:
        if len(self._rows) > MOST_ROWS:
            self._rows.clear()
        low = count.bit_length() - 1
        first = self._along(low, length)
        if 1 << low == count:
            return first
        second = self._along(low + 1, length)
        base = self._points.base.seconds
        share = _share(base(self._make(count, length)), base(self._make(1 << low, length)),
                       base(self._make(2 << low, length)), count / (1 << low) - 1)  # fmt: skip
        return Timed(
            first.seconds + (second.seconds - first.seconds) * share,
            first.spread + (second.spread - first.spread) * share,
        )

    def _along(self, row: int, length: int) -> Timed:
        """At 2^row of the first size."""
        low = length.bit_length() - 1
        times = self._row(row, low + 1)
        seconds, spread = times[low]
        if 1 << low == length:
            return Timed(seconds, spread)
        base, count = self._points.base.seconds, 1 << row
        share = _share(base(self._make(count, length)), base(self._make(count, 1 << low)),
                       base(self._make(count, 2 << low)), length / (1 << low) - 1)  # fmt: skip
        further, spread_there = times[low + 1]
        return Timed(seconds + (further - seconds) * share, spread + (spread_there - spread) * share)

    def _row(self, row: int, upto: int) -> list[tuple[float, float]]:
        """Times at 2^0, 2^1, ... of the second size."""
        known = self._rows.setdefault(row, [])
        if len(known) <= upto:
            made = [self._make(1 << row, 1 << i) for i in range(len(known), max(upto + 1, 14))]
            found = self._points.corrections([self._place(op) for op in made])
            for op, c in zip(made, found):
                seconds = self._points.base.seconds(op) * exp(c.value)
                known.append((max(seconds, known[-1][0]) if known else seconds, c.spread))
        return known
