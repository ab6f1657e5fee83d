"""A phase of a prediction: its operators added up by role, with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import sqrt
from operator import itemgetter
from typing import NamedTuple

from chip import ops
from chip.predictor.operator_time import OF_POINTS, OperatorTime
from chip.predictor.roof import Power
from chip.types import Scenario

BETWEEN_CARDS = 1.03  # ratio between two H200s: 1.027 in products at memory's bandwidth, 1.035 in multiplications


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


class RoleTotal:
    """All calls of one role, added up. Kind, bound and source are those of the longest."""

    __slots__ = (
        "bound", "bytes", "calls", "flops", "high_s", "joules", "kind", "limited_high_s", "limited_low_s", "limited_s",
        "low_s", "seconds", "source",
    )  # fmt: skip

    def __init__(self) -> None:
        self.kind = self.bound = self.source = ""
        self.calls = self.seconds = self.low_s = self.high_s = self.flops = self.bytes = self.joules = 0.0
        # of seconds, low_s and high_s: the part that the power limit sets (`chip.predictor.clock`)
        self.limited_s = self.limited_low_s = self.limited_high_s = 0.0

    def add(self, kind: str, time: OperatorTime, calls: float) -> None:
        seconds, low_s, high_s, bound, source, flops, moved, limited_s, joules = time
        if seconds * calls >= self.seconds:
            self.kind, self.bound, self.source = kind, bound, source
        self.calls += calls
        self.seconds += seconds * calls
        self.low_s += low_s * calls
        self.high_s += high_s * calls
        self.flops += flops * calls
        self.bytes += moved * calls
        self.joules += joules * calls
        if limited_s:
            part = calls * limited_s / seconds
            self.limited_s += limited_s * calls
            self.limited_low_s += low_s * part
            self.limited_high_s += high_s * part

    def line(self, role: str, slower: float) -> Line:
        """`slower`: the part that seconds at the power limit take more at the clock of the phase."""
        return line_of((
            role, self.kind, self.calls, self.seconds + slower * self.limited_s,
            self.low_s + slower * self.limited_low_s, self.high_s + slower * self.limited_high_s,
            self.bound, self.source, self.flops, self.bytes, self.joules,
        ))  # fmt: skip


class Phase:
    """Prefill (until the last first token) or the mean decode step: its lines, longest first, and their sums."""

    __slots__ = (
        "early_s", "early_tokens", "high_s", "joules", "lines", "low_s", "matmul_flops", "seconds", "seconds_by_bound",
        "seconds_by_source",
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
        # of a prefill: tokens that early requests decode beside other prompts, and what these took together
        self.early_tokens = self.early_s = 0.0

    @property
    def bound(self) -> str:
        """What limits most of the time."""
        return max(self.seconds_by_bound, key=self.seconds_by_bound.__getitem__)


def request_tpot_s(prefill: Phase, decode: Phase, s: Scenario) -> float:
    """Mean over the requests of (last token - first token) / (output - 1), as traffic is measured. A request that has
    its first token early decodes beside other prompts."""
    tokens = s.batch * (s.output - 1)
    return decode.seconds + (prefill.early_s - prefill.early_tokens * decode.seconds) / tokens


def interval(lines: Sequence[Line], scale: float = 1.0) -> tuple[float, float, float]:
    """Seconds of all lines together: expected, low, high. Errors of lines from points are independent and add as
    squares. Those of lines that share a roof add linearly. Cards differ in everything. `scale` multiplies the logarithm
    of the width, by the kind of GPU (`chip.predictor.basis`)."""
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
    return lines if left == total else [line_of((*line[:-1], line.joules * left / total)) for line in lines]
