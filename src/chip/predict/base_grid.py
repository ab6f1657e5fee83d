"""An operator's base time over one or two sizes, made to never fall along any.

Bases of attention have stairs that go down as well: a kernel that cuts its keys into more parts fills the GPU better.
Where points were measured they decide how deep those are; without any, time is the largest so far at nodes, and a power
law between them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from math import exp, log

COUNTS = [1 << i for i in range(28)]
LENGTHS = sorted({*COUNTS[4:], *(3 << i for i in range(3, 27))})  # fewer than 16 take as long: no block is smaller


Base = Callable[..., float]


class BaseGrid:
    __slots__ = ("_at", "_fast", "_longest", "_nodes", "_seconds", "_slow")

    def __init__(self, at: Callable[[int, int], Sequence[int]], seconds: Base, fast: Base, slow: Base) -> None:
        """`seconds(*at(count, length))`; `fast` and `slow`: the same at the best and at the worst."""
        self._at, self._seconds, self._fast, self._slow = at, seconds, fast, slow
        self._longest, self._nodes = dict[int, list[float]](), dict[int, list[float]]()

    def __call__(self, count: int, length: int) -> tuple[float, float, float]:
        """Seconds, and as far off as the bases are."""
        found, sizes = self.rising(count, length), self._at(count, length)
        off = found / self._seconds(*sizes)
        return found, off * self._fast(*sizes), off * self._slow(*sizes)

    def rising(self, count: int, length: int) -> float:
        length = max(length, LENGTHS[0])
        row, column = count.bit_length() - 1, bisect_right(LENGTHS, length) - 1
        first = self._along(row, column, length)
        if COUNTS[row] == count:
            return first
        return _between(count, COUNTS[row], first, COUNTS[row + 1], self._along(row + 1, column, length))

    def _along(self, row: int, column: int, length: int) -> float:
        nodes = self._nodes.get(row, ())
        if len(nodes) <= column + 1:
            nodes = self._row(row, column + 1)
        if LENGTHS[column] == length:
            return nodes[column]
        return _between(length, LENGTHS[column], nodes[column], LENGTHS[column + 1], nodes[column + 1])

    def _row(self, row: int, column: int) -> list[float]:
        """Each the largest of those no longer, of as many or fewer."""
        held = self._nodes.get(row, [])
        if len(held) <= column:
            longest = self._upto(row, column)
            held = self._nodes[row] = list(map(max, longest, self._row(row - 1, column))) if row else longest
        return held

    def _upto(self, row: int, column: int) -> list[float]:
        """The largest of a row up to each column. A list that is kept is never changed: other threads may read it."""
        held = self._longest.get(row, [])
        if len(held) <= column:
            more = [self._seconds(*self._at(COUNTS[row], length)) for length in LENGTHS[len(held) : column + 1]]
            held = self._longest[row] = [*accumulate([*held, *more], max)]
        return held


def _between(size: int, low: int, low_s: float, high: int, high_s: float) -> float:
    if low_s == high_s:
        return low_s
    return low_s * exp(log(high_s / low_s) * log(size / low) / log(high / low))


class StraightCurve:
    """Times along tokens, straight between nodes that are found when needed."""

    __slots__ = ("_seconds", "_times")

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self._seconds = seconds
        self._times: dict[int, float] = {}

    def __call__(self, tokens: int) -> float:
        low = 1 << tokens.bit_length() - 1
        first = self._at(low)
        return first if low == tokens else first + (self._at(2 * low) - first) * (tokens / low - 1)

    def _at(self, node: int) -> float:
        found = self._times.get(node)
        if found is None:
            found = self._times[node] = self._seconds(node)
        return found
