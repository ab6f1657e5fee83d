"""A phase of a prediction: its operators added up by role, with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import sqrt
from operator import itemgetter
from typing import Any, NamedTuple

from chip import ops
from chip.predict.limits import OF_POINTS, Answer
from chip.predict.roof import Power
from chip.timeline import RoleLaunches

BETWEEN_CARDS = 1.03  # ratio between two H200s: 1.027 in products at memory's bandwidth, 1.035 in multiplications


class CallBlock(NamedTuple):
    """Operators in the order of their calls."""

    kinds: tuple[str, ...]
    launches: RoleLaunches


Rows = list[tuple[int, CallBlock, Sequence[Answer]]]  # all operators of a step: repeat, calls, the answer of each


class Line(NamedTuple):
    """A row of the breakdown: all calls of one role in a phase."""

    role: str
    kind: str
    calls: float
    seconds: float
    low_s: float
    high_s: float
    bound: str
    source: str
    flops: float
    bytes: float
    joules: float  # above idle


line_of = partial(tuple.__new__, Line)  # from a tuple of all fields: twice as fast as Line(...)


class Phase:
    """Prefill (until the last first token) or the mean decode step: its lines, longest first, and their sums."""

    __slots__ = (
        "high_s", "joules", "lines", "low_s", "matmul_flops", "seconds", "seconds_by_bound", "seconds_by_source",
    )  # fmt: skip

    def __init__(self, lines: Iterable[Line], low_s: float, high_s: float) -> None:
        self.lines = sorted(lines, key=itemgetter(3), reverse=True)
        total_s = total_joules = total_flops = 0.0
        by_bound, by_source = dict[str, float](), dict[str, float]()
        for _, kind, _, seconds, _, _, bound, source, flops, _, joules in self.lines:
            total_s += seconds
            total_joules += joules
            if ops.multiplies(kind):
                total_flops += flops
            by_bound[bound] = by_bound.get(bound, 0.0) + seconds
            by_source[source] = by_source.get(source, 0.0) + seconds
        self.seconds, self.joules, self.matmul_flops = total_s, total_joules, total_flops
        self.low_s, self.high_s = min(low_s, total_s), max(high_s, total_s)
        self.seconds_by_bound, self.seconds_by_source = by_bound, by_source

    @property
    def bound(self) -> str:
        """What limits most of the time."""
        return max(self.seconds_by_bound, key=self.seconds_by_bound.__getitem__)


def interval(lines: Sequence[Line], scale: float = 1.0) -> tuple[float, float, float]:
    """Seconds of all lines together: expected, low, high. Errors of lines from points are independent and add as
    squares. Those of lines that share a roof add linearly. Cards differ in everything. `scale` multiplies the logarithm
    of the width, by the kind of GPU (`chip.predict.interval_class`)."""
    seconds = below = above = 0.0
    shared: dict[str, tuple[float, float]] = {}
    for _, _, _, own_s, low_s, high_s, _, source, _, _, _ in lines:
        low, high = own_s - low_s, high_s - own_s
        seconds += own_s
        if source in OF_POINTS:
            below += low * low
            above += high * high
        else:
            sum_low, sum_high = shared.get(source, (0.0, 0.0))
            shared[source] = (sum_low + low, sum_high + high)
    for low, high in shared.values():
        below += low * low
        above += high * high
    of_cards = (seconds * (BETWEEN_CARDS - 1)) ** 2
    low_s, high_s = max(0.0, seconds - sqrt(below + of_cards)), seconds + sqrt(above + of_cards)
    if scale != 1.0 and seconds:
        low_s, high_s = (seconds * (s / seconds) ** scale for s in (low_s, high_s))
    return seconds, low_s, high_s


def within_power(lines: Sequence[Line], power: Power | None, seconds: float) -> Sequence[Line]:
    """The same lines, their joules reduced to what the power limit leaves of them in so much time. It holds the mean of
    a tenth of a second and more, so that what the device waits counts."""
    total = sum([line.joules for line in lines])
    left = power.within(total, seconds) if power else total
    return lines if left == total else [line._replace(joules=line.joules * left / total) for line in lines]


def lines_of(steps: Iterable[tuple[Rows, float]]) -> list[Line]:
    """A line for each role, all steps added up by their weights. Kind, bound and source are those of the longest
    call."""
    merged: dict[str, tuple[Any, ...]] = {}
    for rows, weight in steps:
        for repeat, (kinds, launches), answers in rows:
            n = weight * repeat
            calls = zip(launches.names, kinds, answers)
            for role, kind, (seconds, low_s, high_s, bound, source, flops, moved, _, joules) in calls:
                times = seconds * n, low_s * n, high_s * n
                own = role, kind, n, *times, bound, source, flops * n, moved * n, joules * n
                merged[role] = _sum(merged[role], own) if role in merged else own
    return list(map(line_of, merged.values()))


def _sum(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
    """Two lines of the same role as one."""
    role, kind, calls, seconds, low_s, high_s, bound, source, flops, moved, joules = one
    _, kind_2, calls_2, seconds_2, low_2_s, high_2_s, bound_2, source_2, flops_2, moved_2, joules_2 = other
    if seconds_2 >= seconds:
        kind, bound, source = kind_2, bound_2, source_2
    times = seconds + seconds_2, low_s + low_2_s, high_s + high_2_s
    work = flops + flops_2, moved + moved_2, joules + joules_2
    return role, kind, calls + calls_2, *times, bound, source, *work
