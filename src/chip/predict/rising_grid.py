"""Times over two sizes, made to rise with both: attention over the count of sequences and the length of their keys.

Times are evaluated at nodes and interpolated linearly between them. Each doubling of the count has two or four nodes,
each doubling of the length four. From 64 tokens on every node has a second one a token later, where a new tile begins.
Raw times may fall where a larger size fills the GPU better. Three rules make them rise:

1. No node takes longer than the next power of two of the count or the next edge of the length: these were measured, and
   are asked for, most.
2. Between two edges a node is midway between the longest time before it and the shortest after it.
3. No node takes less than the same length at a smaller count, or a smaller length at the same count.

Edges are a length of 1 and the powers of two from 64 on. Nodes between two edges depend on no others of their count, so
that only those are made that are asked for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

Timed = tuple[float, float]  # seconds and spread
Times = Callable[[int, Sequence[int]], Sequence[Timed]]  # of one count, at several lengths
TILE = 64  # tokens
MOST = 28  # doublings of a size
COARSE, FINE = (  # whole numbers of the form (1 + i / n) x 2^k
    sorted({(n + i << k) // n for k in range(MOST) for i in range(n) if not (n + i << k) % n}) for n in (2, 4)
)
LENGTHS = sorted({*FINE, *(n + 1 for n in FINE if n >= TILE)})
EDGES = [1, *(n for n in (1 << k for k in range(MOST)) if n >= TILE)]
SPANS = [[n for n in LENGTHS if a <= n <= b] for a, b in pairwise(EDGES)]  # nodes from an edge to the next


class RisingGrid:
    """`times` gives the raw seconds and spreads."""

    __slots__ = ("_corners", "_counts", "_raw", "_spans", "_times")

    def __init__(self, times: Times, counts: Sequence[int] = FINE) -> None:
        self._times, self._counts = times, counts
        # by index of the count and of the span or edge; raw ones by the count itself
        self._spans: dict[tuple[int, int], list[Timed]] = {}
        self._corners: dict[tuple[int, int], float] = {}
        self._raw: dict[tuple[int, int, bool], Sequence[Timed]] = {}

    def __call__(self, count: int, length: int) -> Timed:
        row, row_share = _place(self._counts, count)
        span = min(max(0, bisect_left(EDGES, length) - 1), len(SPANS) - 1)
        column, column_share = _place(SPANS[span], length)
        seconds, spread = _between(self._span(row, span), column, column_share)
        if not row_share:
            return seconds, spread
        more, wider = _between(self._span(row + 1, span), column, column_share)
        return seconds + (more - seconds) * row_share, max(spread, wider)

    def _span(self, row: int, span: int) -> list[Timed]:
        """The nodes of one count from an edge of the length to the next."""
        found = self._spans.get((row, span))
        if found is None:
            found = self._spans[row, span] = self._made(row, span)
        return found

    def _made(self, row: int, span: int) -> list[Timed]:
        count, least, most = self._counts[row], self._corner(row, span), self._corner(row, span + 1)
        raw, raw_of_power = (self._raw_inside(n, span) for n in (count, _next_power(count)))
        top = self._top(count, span + 1)
        own = [min(seconds, more, top) for (seconds, _), (more, _) in zip(raw, raw_of_power)]
        longest, shortest = accumulate(own, max), [*accumulate(own[::-1], min)][::-1]
        even = [max(least, (high + low) / 2) for high, low in zip(longest, shortest)]
        fewer = self._fewer(row)
        if fewer >= 0 and self._corner(fewer, span + 1) > least:  # else all of its nodes take less
            even = [max(seconds, before) for seconds, (before, _) in zip(even, self._span(fewer, span)[1:])]
        first, last = ((s, self._raw_edge(count, edge)[1]) for s, edge in ((least, span), (most, span + 1)))
        return [first, *((seconds, spread) for seconds, (_, spread) in zip(accumulate(even, max), raw)), last]

    def _corner(self, row: int, edge: int) -> float:
        """Seconds at an edge of the length."""
        found = self._corners.get((row, edge))
        if found is None:
            fewer = self._fewer(row)
            shorter_s = self._corner(row, edge - 1) if edge else 0.0
            fewer_s = self._corner(fewer, edge) if fewer >= 0 else 0.0
            found = self._corners[row, edge] = max(self._top(self._counts[row], edge), shorter_s, fewer_s)
        return found

    def _fewer(self, row: int) -> int:
        """A smaller count with no longer time between them: for a power of two the power before. -1 for none."""
        count = self._counts[row]
        return bisect_right(self._counts, count >> 1) - 1 if count & (count - 1) == 0 else row - 1

    def _top(self, count: int, edge: int) -> float:
        """Seconds at an edge of the length, as rule 1 leaves them."""
        return min(self._raw_edge(n, edge)[0] for n in (count, _next_power(count)))

    def _raw_edge(self, count: int, edge: int) -> Timed:
        return self._evaluated(count, edge, [EDGES[edge]], True)[0]

    def _raw_inside(self, count: int, span: int) -> Sequence[Timed]:
        return self._evaluated(count, span, SPANS[span][1:-1], False)

    def _evaluated(self, count: int, at: int, lengths: Sequence[int], is_edge: bool) -> Sequence[Timed]:
        found = self._raw.get((count, at, is_edge))
        if found is None:
            found = self._raw[count, at, is_edge] = self._times(count, lengths)
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
