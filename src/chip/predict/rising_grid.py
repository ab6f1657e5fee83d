"""Times over two sizes, made to rise with both: attention over the count of sequences and the length of their keys.

Times are evaluated at nodes and interpolated linearly between them. Each doubling of the count has two or four nodes,
each doubling of the length four. From 64 tokens on every node has a second one a token later, where a new tile begins.
Raw times may fall where a larger size fills the GPU better. Three rules make them rise:

1. No node takes longer than the next power of two of either size: these are asked for, and were measured, most.
2. Between two powers a node is midway between the longest time before it and the shortest after it.
3. No node takes less than the same length at a smaller count, or a smaller length at the same count.

So nodes between two powers of the length depend on no others of their count. Only those that are asked for are made.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

Timed = tuple[float, float]  # seconds and spread
Times = Callable[[int, Sequence[int]], Sequence[Timed]]  # of one count, at several lengths
TILE = 64  # tokens
MOST = 28  # doublings of a size
COARSE, FINE = (  # whole numbers of the form (1 + i / n) x 2^k
    sorted({(n + i << k) // n for k in range(MOST) for i in range(n) if not (n + i << k) % n}) for n in (2, 4)
)
LENGTHS = sorted({*FINE, *(n + 1 for n in FINE if n >= TILE)})
OCTAVES = [[n for n in LENGTHS if 1 << k <= 2 * n <= 2 << k] for k in range(MOST)]  # from 2^(k - 1) to 2^k


class RisingGrid:
    """`times` gives the raw seconds and spreads."""

    __slots__ = ("_corners", "_counts", "_octaves", "_raw", "_times")

    def __init__(self, times: Times, counts: Sequence[int] = FINE) -> None:
        self._times, self._counts = times, counts
        # by index of the count and exponent of the length's power of two
        self._octaves: dict[tuple[int, int], list[Timed]] = {}
        self._corners: dict[tuple[int, int], float] = {}
        self._raw: dict[tuple[int, int, bool], Sequence[Timed]] = {}

    def __call__(self, count: int, length: int) -> Timed:
        row, row_share = _place(self._counts, count)
        octave = min(max(1, (length - 1).bit_length()), MOST - 1)
        column, column_share = _place(OCTAVES[octave], length)
        seconds, spread = _between(self._octave(row, octave), column, column_share)
        if not row_share:
            return seconds, spread
        more, wider = _between(self._octave(row + 1, octave), column, column_share)
        return seconds + (more - seconds) * row_share, max(spread, wider)

    def _octave(self, row: int, octave: int) -> list[Timed]:
        """The nodes of one count from a power of two of the length to the next."""
        found = self._octaves.get((row, octave))
        if found is None:
            found = self._octaves[row, octave] = self._made(row, octave)
        return found

    def _made(self, row: int, octave: int) -> list[Timed]:
        count, least, most = self._counts[row], self._corner(row, octave - 1), self._corner(row, octave)
        raw, raw_of_power = (self._raw_times(n, octave) for n in (count, _next_power(count)))
        top = self._top(count, octave)
        own = [min(seconds, more, top) for (seconds, _), (more, _) in zip(raw, raw_of_power)]
        longest, shortest = accumulate(own, max), [*accumulate(own[::-1], min)][::-1]
        even = [max(least, (high + low) / 2) for high, low in zip(longest, shortest)]
        fewer = self._fewer(row)
        if fewer >= 0 and self._corner(fewer, octave) > least:  # else all of its nodes take less
            even = [max(seconds, before) for seconds, (before, _) in zip(even, self._octave(fewer, octave)[1:])]
        ends = [(s, self._raw_power(count, k)[1]) for s, k in ((least, octave - 1), (most, octave))]
        return [ends[0], *((seconds, spread) for seconds, (_, spread) in zip(accumulate(even, max), raw)), ends[1]]

    def _corner(self, row: int, octave: int) -> float:
        """Seconds at a power of two of the length."""
        found = self._corners.get((row, octave))
        if found is None:
            fewer = self._fewer(row)
            shorter_s = self._corner(row, octave - 1) if octave else 0.0
            fewer_s = self._corner(fewer, octave) if fewer >= 0 else 0.0
            found = self._corners[row, octave] = max(self._top(self._counts[row], octave), shorter_s, fewer_s)
        return found

    def _fewer(self, row: int) -> int:
        """A smaller count with no longer time between them: for a power of two the power before. -1 for none."""
        count = self._counts[row]
        return bisect_right(self._counts, count >> 1) - 1 if count & (count - 1) == 0 else row - 1

    def _top(self, count: int, octave: int) -> float:
        """Seconds at a power of two of the length, as rule 1 leaves them."""
        return min(self._raw_power(n, octave)[0] for n in (count, _next_power(count)))

    def _raw_power(self, count: int, octave: int) -> Timed:
        return self._evaluated(count, octave, [1 << octave], True)[0]

    def _raw_times(self, count: int, octave: int) -> Sequence[Timed]:
        """Of the nodes between two powers of two."""
        return self._evaluated(count, octave, OCTAVES[octave][1:-1], False)

    def _evaluated(self, count: int, octave: int, lengths: Sequence[int], power: bool) -> Sequence[Timed]:
        found = self._raw.get((count, octave, power))
        if found is None:
            found = self._raw[count, octave, power] = self._times(count, lengths)
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
