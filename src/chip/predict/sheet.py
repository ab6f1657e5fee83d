"""An operator's time over two sizes, sequences and context: attention, which a model asks for again and again.

Times are known on a lattice: the base time, corrected by what the nearest points say. A base may fall where another
split fills the GPU better, so nodes are evened out between powers of two: each is midway between the largest of those
no larger and the least of those no smaller. Between nodes times are straight along both sizes, so they never fall.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import exp
from operator import methodcaller

from chip.predict.interpolate import Correction, Points
from chip.types import Op

LEAST, MOST = 3, 40  # powers of two of the context: fewer than 8 tokens take as long
COMMON = 14  # powers of two that most ask for
BLOCK = 64  # tokens: from here on one more is another block, a stair of its own
QUARTERS = [(4 + i) << k - 2 for k in range(LEAST, MOST) for i in range(4)]
LENGTHS = sorted({*QUARTERS, *(n + 1 for n in QUARTERS if n >= BLOCK)})
Base = Callable[..., float]
At = Callable[[int, int], Sequence[int]]
Node = tuple[float, float]  # a value and its spread


def _octaves(sizes: Sequence[int]) -> list[range]:
    """Numbers of the sizes up to the first power of two, from there to the next, and so on."""
    ends = [i + 1 for i, n in enumerate(sizes) if n & (n - 1) == 0]
    return [range(*pair) for pair in pairwise([0, *ends])]


def _octave(size: int) -> tuple[int, float]:
    """The power of two below, and how far on the way to the next."""
    low = size.bit_length() - 1
    return low, size / (1 << low) - 1


class Counts:
    """Numbers of sequences at which there are nodes, with every power of two among them."""

    __slots__ = ("octaves", "sizes")

    def __init__(self, per_octave: int) -> None:
        parts = ((per_octave + i << k) for k in range(26) for i in range(per_octave))
        self.sizes = sorted({*range(1, per_octave), *(1 << k for k in range(28)), *parts})
        self.octaves = _octaves(self.sizes)


# For single tokens, whose splits depend on the sequences; for prompts; for the tokens of a chunk.
FINE, COARSE, SPARSE = Counts(6), Counts(2), Counts(1)
COLUMNS, OCTAVES = _octaves(LENGTHS), [_octave(n) for n in LENGTHS]


class Sheet:
    __slots__ = ("_at", "_counts", "_make", "_place", "_points", "_powers", "_rows", "base")

    def __init__(
        self,
        make: Callable[..., Op],
        at: At,
        base: Base,
        counts: Counts,
        points: Points | None = None,
        place: Callable[[Op], tuple[float, ...]] | None = None,
    ) -> None:
        """`base(*at(count, length))` are seconds, and `make` of the same the operator, where points correct them.
        `place`: where it lies among these, if not where it says itself."""
        self._make, self._at, self.base, self._counts, self._points = make, at, base, counts, points
        self._place = place or methodcaller("place")
        # A list that is kept is never changed: other threads may read it, or make the same.
        self._rows: dict[int, list[Node]] = {}  # seconds, by the number of a count
        self._powers: dict[int, list[Correction]] = {}  # at powers of two of both sizes, by that of the count

    def at(self, count: int, length: int) -> Node:
        """Seconds and spread."""
        length = max(length, LENGTHS[0])
        counts = self._counts.sizes
        row, column = bisect_right(counts, count) - 1, bisect_right(LENGTHS, length) - 1
        first, low = LENGTHS[column], counts[row]
        part = (length - first) / (LENGTHS[column + 1] - first)
        seconds, spread = _along(self._row(row, column + 1), column, part)
        if count == low:
            return seconds, spread
        more, wider = _along(self._row(row + 1, column + 1), column, part)
        share = (count - low) / (counts[row + 1] - low)
        return seconds + (more - seconds) * share, spread + (wider - spread) * share

    def _row(self, row: int, column: int) -> list[Node]:
        """The nodes of one count, at least up to a column. What is larger is made after all that is smaller."""
        if len(self._rows.get(row, ())) <= column:
            for columns in COLUMNS[: _number(COLUMNS, column) + 1]:
                for rows in self._counts.octaves[: _number(self._counts.octaves, row) + 1]:
                    if len(self._rows.get(rows[-1], ())) < columns.stop:
                        self._fill(rows, columns)
        return self._rows[row]

    def _fill(self, rows: range, columns: range) -> None:
        """Nodes between two powers of two of both sizes."""
        corrected = [self._corrected(self._counts.sizes[row], columns) for row in rows]
        most = corrected[-1][-1][0]
        own = [[min(seconds, most) for seconds, _ in row] for row in corrected]
        upper = [*accumulate([[*accumulate(row, max)] for row in own], _larger)]
        lower = [*accumulate([[*accumulate(row[::-1], min)] for row in own[::-1]], _smaller)]
        fewer = (
            [s for s, _ in self._rows[rows[0] - 1][columns.start : columns.stop]] if rows[0] else [0.0] * len(columns)
        )
        for row, above, below, nodes in zip(rows, upper, lower[::-1], corrected):
            before = self._rows[row][: columns.start] if columns.start else []
            even = [(high + low) / 2 for high, low in zip(above, below[::-1])]
            fewer = [*accumulate([before[-1][0] if before else 0.0, *map(max, even, fewer)], max)][1:]
            self._rows[row] = [*before, *((seconds, spread) for seconds, (_, spread) in zip(fewer, nodes))]

    def _corrected(self, count: int, columns: range) -> list[Node]:
        """Seconds of one count in some columns: corrections are straight between powers of two."""
        sizes = [self._at(count, LENGTHS[i]) for i in columns]
        bases = [self.base(*size) for size in sizes]
        if self._points is None:
            return [(seconds, 0.0) for seconds in bases]
        (low, share), upto = _octave(count), OCTAVES[columns[-1]][0]
        row = self._corrections(low, upto)
        if share:
            more = self._corrections(low + 1, upto)
            row = [Correction(v + (w - v) * share, s + (t - s) * share) for (v, s), (w, t) in zip(row, more)]
        along = (_along(row, *OCTAVES[i]) for i in columns)
        return [(seconds * exp(value), spread) for seconds, (value, spread) in zip(bases, along)]

    def _corrections(self, row: int, upto: int) -> list[Correction]:
        """At 2^row of the first size and 2^0, 2^1, ... of the second: together those that most ask for, and the others
        together, so that no answer depends on what was asked before."""
        assert self._points is not None
        known = self._powers.get(row, [])
        for end in COMMON, MOST + 1:
            if len(known) < end and upto >= len(known):
                first = len(known) or LEAST
                sizes = [self._at(1 << row, 1 << i) for i in range(first, end)]
                found = self._points.corrections([self._place(self._make(*at)) for at in sizes])
                known = self._powers[row] = [*(known or found[:1] * first), *found]
        return known


def _number(octaves: Sequence[range], at: int) -> int:
    return bisect_right(octaves, at, key=lambda r: r.start) - 1


def _larger(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [*map(max, one, other)]


def _smaller(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [*map(min, one, other)]


def _along(row: Sequence[Node], at: int, part: float) -> Node:
    value, spread = row[at]
    if not part:
        return value, spread
    more, wider = row[at + 1]
    return value + (more - value) * part, spread + (wider - spread) * part


class BaseSheet:
    """The same of an operator without points: its base at its best and at its worst goes along."""

    __slots__ = ("_at", "_fast", "_sheet", "_slow")

    def __init__(self, make: Callable[..., Op], at: At, seconds: Base, fast: Base, slow: Base) -> None:
        self._sheet, self._at, self._fast, self._slow = Sheet(make, at, seconds, COARSE), at, fast, slow

    def __call__(self, count: int, length: int) -> tuple[float, float, float]:
        """Seconds, and as far off as the bases are."""
        (found, _), sizes = self._sheet.at(count, length), self._at(count, length)
        off = found / self._sheet.base(*sizes)
        return found, off * self._fast(*sizes), off * self._slow(*sizes)
