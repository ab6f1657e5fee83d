"""The time of an attention over sequences, queries and keys, made to never fall along any of them.

Times are known at nodes, each the largest of all that are no larger. Between them their logarithms are straight along
the way that takes the axes in turn, that with the most left first: no such way leads to more queries than keys.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from math import exp, log, prod

Timed = tuple[float, float]  # seconds and spread
Times = Callable[[int, int, Sequence[int]], Sequence[Timed]]  # of sequences, queries, and several numbers of keys
COUNTS = [1 << i for i in range(13)]
TILE = 64  # tokens: one more is another tile, which is of no account where there are many
EDGES = [n + 1 for n in COUNTS if n >= TILE]
LENGTHS = sorted({1 << i for i in range(17)} | {*EDGES})


class RisingGrid:
    __slots__ = ("_prompts", "_rows", "_times")

    def __init__(self, times: Times) -> None:
        self._times = times
        self._rows: dict[tuple[int, int], list[Timed]] = {}
        self._prompts: dict[tuple[int, int], Timed] = {}

    def __call__(self, batch: int, q_len: int, kv_len: int) -> Timed:
        """Beyond the last nodes the device is full, and time grows as the work."""
        axes = (COUNTS, batch), (LENGTHS, q_len), (LENGTHS, kv_len)
        at = [bisect_right(nodes, size) - 1 for nodes, size in axes]
        left = [_share(nodes, low, size) for (nodes, size), low in zip(axes, at)]
        upto = min(at[2] + 1, len(LENGTHS) - 1)  # the last node that may be asked for
        seconds, spread = self._node(at, upto)
        value = log(seconds)
        for axis in sorted([a for a in (2, 1, 0) if left[a]], key=lambda a: -left[a]):  # keys before queries
            at[axis] += 1
            more, wider = self._node(at, upto)
            value += left[axis] * log(more / seconds)
            seconds, spread = more, max(spread, wider)
        return exp(value) * prod([max(1.0, size / nodes[-1]) for nodes, size in axes]), spread

    def _node(self, at: Sequence[int], upto: int) -> Timed:
        row, queries, keys = at
        return self._row(row, queries, upto)[keys - queries]

    def _prompt(self, row: int, keys: int) -> Timed:
        """Of as many queries as keys: those are measured most, and no part of them takes longer. At an edge there are
        no more than at the next node."""
        found = self._prompts.get((row, keys))
        if found is None:
            (found,) = self._times(COUNTS[row], LENGTHS[keys], [LENGTHS[keys]])
            if LENGTHS[keys] in EDGES:
                found = min(found, self._prompt(row, keys + 1))
            self._prompts[row, keys] = found
        return found

    def _row(self, row: int, queries: int, upto: int) -> list[Timed]:
        """At as many keys as queries, and at the nodes after that: no less than of fewer keys, queries or sequences. A
        list that is kept is never changed: other threads may read it."""
        known = self._rows.get((row, queries), [])
        first = queries + len(known)
        if first > upto:
            return known
        fewer = self._row(row - 1, queries, upto) if row else None
        shorter = self._row(row, queries - 1, upto)[1:] if queries else None
        found = self._times(COUNTS[row], LENGTHS[queries], LENGTHS[first : upto + 1])
        if queries:
            found = [min(own, self._prompt(row, keys)) for keys, own in enumerate(found, first)]
        known = known.copy()
        for i, (seconds, spread) in enumerate(found, len(known)):
            before = [known[-1:], fewer[i : i + 1] if fewer else (), shorter[i : i + 1] if shorter else ()]
            known.append((max([seconds, *(least for less in before for least, _ in less)]), spread))
        self._rows[row, queries] = known
        return known


def _share(nodes: Sequence[int], low: int, size: int) -> float:
    """How far on the way to the next node, if there is one."""
    if low + 1 == len(nodes):
        return 0.0
    return log(size / nodes[low]) / log(nodes[low + 1] / nodes[low])
