"""An operator's time over two sizes: attention over sequences and context, which a model asks for again and again.

Nodes lie at powers of two of both sizes, each the base time corrected by its nearest points. Between them times follow
the base, whose stairs are the kernel's waves and blocks of keys; where the base falls, times stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from math import exp
from operator import methodcaller

from chip.ops.attention import single
from chip.ops.attention_kernels import KEY_STEP
from chip.predict.interpolate import Points, share_of
from chip.types import Op

COMMON_NODES, MOST_NODES = 14, 40  # along a row of a sheet, each twice the one before
LEAST_NODE = 4  # of them: fewer than 16 tokens take as long, since no block of a kernel has fewer
BETWEEN = 8  # sizes between two powers of two whose bases are looked at, ...
FINE = 2048  # ... from here on; before it all that are a step of a kernel apart
FIRST_STAIR = 7  # 2^7 keys are a block
MOST_ROWS, MOST_PEAKS = 256, 4096  # of a sheet: a sweep of any length runs in bounded memory

Node = tuple[float, float, float]  # seconds, spread, and the base's seconds


class Sheet:
    """An operator's time over two sizes, such as sequences and context: as a curve, its nodes found when needed. Along
    the second size times never fall."""

    __slots__ = (
        "_along_counts", "_at", "_counts", "_ladders", "_make", "_peaks", "_place", "_points", "_rows", "_stairs",
        "_steps", "base",
    )  # fmt: skip

    def __init__(
        self,
        make: Callable[..., Op],
        at: Callable[[int, int], Sequence[int]],
        points: Points,
        place: Callable[[Op], tuple[float, ...]] | None = None,
        counts: bool = False,
    ) -> None:
        """`make(*at(first, second))` is the operator of two sizes. `place`: where its nodes lie among the points,
        instead of where they say themselves. `counts`: the first size is a number of sequences, and times never fall
        along it either."""
        self._make, self._at, self._points, self._place = make, at, points, place or methodcaller("place")
        self._counts = counts
        self.base = points.base.over(make)
        self._along_counts = counts and at is single
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[int, list[Node]] = {}
        self._ladders: dict[tuple[int, int], list[Node]] = {}
        # bases that rise along the second size and along the first, and times that rise between two rows
        self._stairs: dict[tuple[int, int], list[float]] = {}
        self._steps: dict[tuple[int, int], list[float]] = {}
        self._peaks: dict[tuple[int, int], list[float]] = {}

    def at(self, count: int, length: int) -> Node:
        """Between two rows how near either is depends on the length: no less than at shorter ones."""
        if len(self._rows) > MOST_ROWS or len(self._peaks) > MOST_PEAKS:
            self._forget()
        found = self._at_once(count, length)
        low = length.bit_length() - 1
        if count & (count - 1) == 0 or low < FIRST_STAIR:
            return found
        least_s = self._longest(count, low)[(length - (1 << low)) // _step(low)]
        return (least_s, *found[1:]) if least_s > found[0] else found

    def _longest(self, count: int, low: int) -> list[float]:
        """Seconds of the longest so far of a few sizes from 2^low on."""
        found = self._peaks.get((count, low))
        if found is None:
            before = self._longest(count, low - 1)[-1] if low > FIRST_STAIR else 0.0
            row, sizes = count.bit_length() - 1, range(1 << low, 2 << low, _step(low))
            part, times = count / (1 << row) - 1, [before]
            for n, first, second in zip(sizes, self._ladder(row, low), self._ladder(row + 1, low)):
                if self._along_counts:
                    base = _on_stairs(self._count_stairs(row, n, first[2]), count)
                else:
                    base = self.base(*self._at(count, n))
                times.append(_between(first, second, base, part)[0])
            found = self._peaks[count, low] = [*accumulate(times, max)][1:]
        return found

    def _ladder(self, row: int, low: int) -> list[Node]:
        """At 2^row of the first size and a few of the second from 2^low on, whatever lies between two rows."""
        found = self._ladders.get((row, low))
        if found is None:
            found = [self._rising(row, n) for n in range(1 << low, 2 << low, _step(low))]
            self._ladders[row, low] = found
        return found

    def _count_stairs(self, row: int, length: int, first: float) -> list[float]:
        found = self._steps.get((row, length))
        if found is None:
            found = self._steps[row, length] = _stairs(lambda n: self.base(n, 1, length), 1 << row, 2 << row, first)
        return found

    def _at_once(self, count: int, length: int) -> Node:
        low = count.bit_length() - 1
        first = self._rising(low, length)
        if 1 << low == count:
            return first
        if self._along_counts:
            base = _on_stairs(_stairs(lambda n: self.base(n, 1, length), 1 << low, count, first[2]), count)
        else:
            base = self.base(*self._at(count, length))
        return _between(first, self._rising(low + 1, length, first), base, count / (1 << low) - 1)

    def _rising(self, row: int, length: int, fewer: Node | None = None) -> Node:
        """At 2^row of the first size: not less than of half as many, also between nodes. `fewer`: those, if known."""
        found = self._along(row, length)
        end = length.bit_length()
        if not self._counts or not row or end >= COMMON_NODES:
            return found
        if found[0] >= self._row(row - 1, end)[end][0]:  # no time between is that long
            return found
        fewer = fewer or self._rising(row - 1, length)
        return (fewer[0], *found[1:]) if fewer[0] > found[0] else found

    def _along(self, row: int, length: int) -> Node:
        """At 2^row of the first size."""
        low = length.bit_length() - 1
        nodes = self._rows.get(row, ())
        if len(nodes) <= low + 1:
            nodes = self._row(row, low + 1)
        if 1 << low == length:
            return nodes[low]
        base = self._rising_base(row, low, length, nodes[low][2])
        return _between(nodes[low], nodes[low + 1], base, length / (1 << low) - 1)

    def _rising_base(self, row: int, low: int, length: int, first: float) -> float:
        """Between 2^low and twice that of the second size: a base may fall where another split fills the GPU better, so
        it is the largest so far of a few sizes, and between those its own where they are next to each other, else
        straight. `first`: at 2^low."""
        found = self._stairs.get((row, low))
        step = _step(low)
        if found is None:
            sizes = range((1 << low) + step, (2 << low) + 1, step)
            found = [*accumulate([first, *[self.base(*self._at(1 << row, n)) for n in sizes]], max)]
            self._stairs[row, low] = found
        at, beyond = divmod(length - (1 << low), step)
        if beyond and step <= KEY_STEP:
            return max(found[at], self.base(*self._at(1 << row, length)))
        return found[at] + (found[at + 1] - found[at]) * beyond / step if beyond else found[at]

    def _row(self, row: int, upto: int) -> list[Node]:
        """Nodes at 2^0, 2^1, ... of the second size: together those that most ask for, and the others together, so that
        no answer depends on what was asked before. A list is kept when it is whole and never changed: other threads
        may read it, or make the same."""
        known = self._rows.get(row, [])
        for end in COMMON_NODES, MOST_NODES:
            if len(known) < end and upto >= len(known):
                # longer contexts take what their bytes take: only the common ones can fall as sequences become more
                fewer = self._row(row - 1, end - 1) if row and self._counts and end == COMMON_NODES else None
                first = len(known) or LEAST_NODE
                sizes = [self._at(1 << row, 1 << i) for i in range(first, end)]
                found = self._points.corrections([self._place(self._make(*at)) for at in sizes])
                made = known.copy()
                for i, base, c in zip(range(first, end), [self.base(*at) for at in sizes], found):
                    seconds = base * exp(c.value)
                    if fewer:
                        seconds = max(seconds, fewer[i][0])
                    node = max(seconds, made[-1][0]) if made else seconds, c.spread, base
                    made += [node] * (1 if made else first + 1)
                known = self._rows[row] = made
        return known


def _step(low: int) -> int:
    """Between two sizes from 2^low on whose bases are looked at."""
    eighth = max(1, (1 << low) // BETWEEN)
    return min(eighth, KEY_STEP) if 1 << low <= FINE else eighth


def _stairs(base: Callable[[int], float], low: int, size: int, first: float) -> list[float]:
    """A base may fall where another split fills the GPU better: the largest so far of a few sizes from a power of two
    on, up to the first that is not less than `size`. `first`: at that power of two."""
    step = max(1, low // BETWEEN)
    return [*accumulate([first, *[base(n) for n in range(low + step, size + step, step)]], max)]


def _on_stairs(stairs: Sequence[float], size: int) -> float:
    """At a size between two that are next to each other: straight."""
    low = 1 << size.bit_length() - 1
    step = max(1, low // BETWEEN)
    at, beyond = divmod(size - low, step)
    return stairs[at] + (stairs[at + 1] - stairs[at]) * beyond / step if beyond else stairs[at]


def _between(low: Node, high: Node, base: float, straight: float) -> Node:
    share = share_of(base, low[2], high[2], straight)
    return low[0] + (high[0] - low[0]) * share, low[1] + (high[1] - low[1]) * share, base
