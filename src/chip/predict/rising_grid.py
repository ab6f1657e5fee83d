"""Times over two sizes, made to rise with both: attention over the count of sequences and the length of their keys.

Times are evaluated at nodes and interpolated linearly between them. Each doubling of the count has two or four nodes,
each doubling of the length four. From 64 tokens on every node has a second one a token later, where a new tile begins.
Raw times may fall where a larger size fills the GPU better. Three rules make them rise:

1. No node takes longer than the next power of two of either size: these are asked for, and were measured, most.
2. Along the lengths a node is midway between the longest time before it and the shortest after it.
3. No node takes less than the same length at a smaller count.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

Timed = tuple[float, float]  # seconds and spread
Times = Callable[[int, Sequence[int]], Sequence[Timed]]  # of one count, at several lengths
TILE = 64  # tokens
COARSE, FINE = (  # whole numbers of the form (1 + i / n) x 2^k
    sorted({(n + i << k) // n for k in range(28) for i in range(n) if not (n + i << k) % n}) for n in (2, 4)
)
LENGTHS = sorted({*FINE, *(n + 1 for n in FINE if n >= TILE)})


class RisingGrid:
    """`times` gives the raw seconds and spreads."""

    __slots__ = ("_counts", "_raw", "_rows", "_times")

    def __init__(self, times: Times, counts: Sequence[int] = FINE) -> None:
        self._times, self._counts = times, counts
        self._rows: dict[int, list[Timed]] = {}  # by index of the count; a stored list is replaced, never changed
        self._raw: dict[tuple[int, int], Sequence[Timed]] = {}  # by count and first column

    def __call__(self, count: int, length: int) -> Timed:
        row, row_share = _place(self._counts, count)
        column, column_share = _place(LENGTHS, length)
        seconds, spread = _between(self._row(row, column + 1), column, column_share)
        if not row_share:
            return seconds, spread
        more, wider = _between(self._row(row + 1, column + 1), column, column_share)
        return seconds + (more - seconds) * row_share, max(spread, wider)

    def _row(self, row: int, upto: int) -> list[Timed]:
        """The nodes of one count, at least up to a column. They are made up to whole powers of two, so that no answer
        depends on what was asked before."""
        found = self._rows.get(row, [])
        while len(found) <= upto:
            found = self._rows[row] = found + self._until_power(row, len(found), found[-1][0] if found else 0.0)
        return found

    def _until_power(self, row: int, first: int, least: float) -> list[Timed]:
        """The nodes of one count from column `first`, which follows a power of two, to the next power. `least`: seconds
        of the node before."""
        count = self._counts[row]
        columns = slice(first, bisect_left(LENGTHS, _next_power(LENGTHS[first])) + 1)
        raw, raw_of_power = (self._raw_times(n, columns) for n in (count, _next_power(count)))
        own = [min(seconds, most, raw_of_power[-1][0]) for (seconds, _), (most, _) in zip(raw, raw_of_power)]
        longest, shortest = accumulate(own, max), [*accumulate(own[::-1], min)][::-1]
        fewer = self._row(row - 1, columns.stop - 1)[columns] if row else [(0.0, 0.0)] * len(own)
        even = [max(least, (high + low) / 2, before) for high, low, (before, _) in zip(longest, shortest, fewer)]
        return [(seconds, spread) for seconds, (_, spread) in zip(accumulate(even, max), raw)]

    def _raw_times(self, count: int, columns: slice) -> Sequence[Timed]:
        found = self._raw.get((count, columns.start))
        if found is None:
            found = self._raw[count, columns.start] = self._times(count, LENGTHS[columns])
        return found


def _next_power(size: int) -> int:
    """The next power of two; the size itself where it is one."""
    return 1 << (size - 1).bit_length()


def _place(nodes: Sequence[int], size: int) -> tuple[int, float]:
    """The index of the node below a size, and how far on the way to the next node the size is."""
    low = min(bisect_right(nodes, size), len(nodes) - 1) - 1
    return low, (size - nodes[low]) / (nodes[low + 1] - nodes[low])


def _between(row: Sequence[Timed], column: int, share: float) -> Timed:
    (seconds, spread), (more, wider) = row[column], row[column + 1]
    return seconds + (more - seconds) * share, max(spread, wider)
