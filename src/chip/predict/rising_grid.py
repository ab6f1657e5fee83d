"""Times over two sizes that never fall where either grows: attention over sequences and keys.

Times are known at nodes: two or four in each doubling of the count, four in each of the length, and from 64 tokens on
one token after each of these, where another tile begins. A time may fall where a larger size fills the GPU better.
Powers of two are asked for and were measured most, so no node takes longer than the next power of two of either size.
What still falls along the lengths is evened out: a node is midway between the longest before it and the shortest after
it. None takes less than a smaller count does. Between nodes times are straight along both sizes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

Timed = tuple[float, float]  # seconds and spread
Times = Callable[[int, Sequence[int]], Sequence[Timed]]  # of one count, at several lengths
TILE = 64  # tokens
COARSE, FINE = (
    sorted({(n + i << k) // n for k in range(28) for i in range(n) if not (n + i << k) % n}) for n in (2, 4)
)
LENGTHS = sorted({*FINE, *(n + 1 for n in FINE if n >= TILE)})


class RisingGrid:
    """`times` gives seconds and spread at nodes."""

    __slots__ = ("_counts", "_known", "_rows", "_times")

    def __init__(self, times: Times, counts: Sequence[int] = FINE) -> None:
        self._times, self._counts = times, counts
        self._rows: dict[int, list[Timed]] = {}  # by the number of a count; a list that is kept is never changed
        self._known: dict[tuple[int, int], Sequence[Timed]] = {}  # as `times` has them

    def __call__(self, count: int, length: int) -> Timed:
        row, rows_left = _place(self._counts, count)
        column, columns_left = _place(LENGTHS, length)
        seconds, spread = _between(self._row(row, column + 1), column, columns_left)
        if not rows_left:
            return seconds, spread
        more, wider = _between(self._row(row + 1, column + 1), column, columns_left)
        return seconds + (more - seconds) * rows_left, max(spread, wider)

    def _row(self, row: int, upto: int) -> list[Timed]:
        """The nodes of one count, at least up to a column: always up to a power of two, so that no answer depends on
        what was asked before."""
        found = self._rows.get(row, [])
        while len(found) <= upto:
            found = found + self._until_power(row, len(found), found[-1][0] if found else 0.0)
            self._rows[row] = found
        return found

    def _until_power(self, row: int, first: int, least: float) -> list[Timed]:
        """Of one count, the nodes from one after a power of two to the next."""
        count = self._counts[row]
        columns = slice(first, bisect_left(LENGTHS, _next_power(LENGTHS[first])) + 1)
        times, above = (self._asked(n, columns) for n in (count, _next_power(count)))
        own = [min(seconds, most, above[-1][0]) for (seconds, _), (most, _) in zip(times, above)]
        longest, shortest = accumulate(own, max), [*accumulate(own[::-1], min)][::-1]
        fewer = self._row(row - 1, columns.stop - 1)[columns] if row else [(0.0, 0.0)] * len(own)
        even = [max(least, (high + low) / 2, before) for high, low, (before, _) in zip(longest, shortest, fewer)]
        return [(seconds, spread) for seconds, (_, spread) in zip(accumulate(even, max), times)]

    def _asked(self, count: int, columns: slice) -> Sequence[Timed]:
        found = self._known.get((count, columns.start))
        if found is None:
            found = self._known[count, columns.start] = self._times(count, LENGTHS[columns])
        return found


def _next_power(size: int) -> int:
    """Of two, the size itself where it is one."""
    return 1 << (size - 1).bit_length()


def _place(nodes: Sequence[int], size: int) -> tuple[int, float]:
    """The node below a size, and how far it is on the way to the next."""
    low = min(bisect_right(nodes, size), len(nodes) - 1) - 1
    return low, (size - nodes[low]) / (nodes[low + 1] - nodes[low])


def _between(row: Sequence[Timed], at: int, left: float) -> Timed:
    (seconds, spread), (more, wider) = row[at], row[at + 1]
    return seconds + (more - seconds) * left, max(spread, wider)
