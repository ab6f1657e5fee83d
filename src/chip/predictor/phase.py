"""A phase of a prediction: its operators added up by role, with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from math import sqrt
from operator import itemgetter
from typing import NamedTuple

from chip import ops
from chip.predictor.operator_time import OF_POINTS, OperatorTime
from chip.predictor.program import AttentionCall, ProgramTimes, TimedStep
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


def lines_of(steps: Sequence[TimedStep], slower: float) -> list[Line]:
    """A line for each role, all steps added up by their weights; kind, bound and source are those of the longest part.
    `slower`: the part that seconds at the power limit take more."""
    lines: list[Line] = []
    weights: dict[ProgramTimes, float] = {}
    for (_, weight, *_), layers, attention, head in steps:
        weights[layers] = weights.get(layers, 0.0) + weight
        weights[head] = weights.get(head, 0.0) + weight
        for call, time in zip(layers.shape.attention_calls, attention):
            lines.append(_line_of_call(call, time, weight * call.repeat, slower))
    for shape in {part.shape: None for part in weights}:
        (longest, first), *others = [(part, weight) for part, weight in weights.items() if part.shape is shape]
        columns = longest.columns if first == 1.0 else [[first * a for a in column] for column in longest.columns]
        for part, weight in others:
            columns = [[a + weight * b for a, b in zip(total, more)] for total, more in zip(columns, part.columns)]
        calls, seconds, low_s, high_s, flops, moved, joules, limited_s = columns
        if slower and any(limited_s):
            factors = [1 + slower * part_s / s if part_s else 1.0 for part_s, s in zip(limited_s, seconds)]
            seconds, low_s, high_s = [[f * s for f, s in zip(factors, column)] for column in (seconds, low_s, high_s)]
        rows = zip(shape.roles, shape.kinds, calls, seconds, low_s, high_s, longest.words, flops, moved, joules)
        for role, kind, n, s, low, high, (bound, source), work, traffic, energy in rows:
            lines.append(line_of((role, kind, n, s, low, high, bound, source, work, traffic, energy)))
    return lines if len({line[0] for line in lines}) == len(lines) else _by_role(lines)


def _line_of_call(call: AttentionCall, t: OperatorTime, calls: float, slower: float) -> Line:
    each = calls * (1 + slower * t.limited_s / t.seconds) if t.limited_s else calls
    return line_of((
        call.role, call.kind, calls, each * t.seconds, each * t.low_s, each * t.high_s, t.bound, t.source,
        calls * t.flops, calls * t.bytes, calls * t.joules,
    ))  # fmt: skip


def _by_role(lines: Iterable[Line]) -> list[Line]:
    """Lines of one role added up."""
    by_role: dict[str, Line] = {}
    for line in lines:
        known = by_role.get(line[0])
        if known is not None:
            role, kind, _, _, _, _, bound, source, *_ = line if line[3] >= known[3] else known
            _, _, calls, seconds, low_s, high_s, _, _, flops, moved, joules = known
            line = line_of((
                role, kind, calls + line[2], seconds + line[3], low_s + line[4], high_s + line[5], bound, source,
                flops + line[8], moved + line[9], joules + line[10],
            ))  # fmt: skip
        by_role[line[0]] = line
    return list(by_role.values())


class Phase:
    """Prefill (until the last first token) or the mean decode step: its lines, longest first, and their sums."""

    def __init__(self, lines: Iterable[Line], low_s: float, high_s: float) -> None:
        self.lines = sorted(lines, key=itemgetter(3), reverse=True)
        self.seconds, self.joules = sum([n[3] for n in self.lines]), sum([n[10] for n in self.lines])
        self.low_s, self.high_s = min(low_s, self.seconds), max(high_s, self.seconds)
        # of a prefill: tokens that early requests decode beside other prompts, and what these took together
        self.early_tokens = self.early_s = 0.0

    @property
    def matmul_flops(self) -> float:
        return sum([n.flops for n in self.lines if ops.multiplies(n.kind)])

    @cached_property
    def seconds_by_source(self) -> dict[str, float]:
        return self._seconds_by(7)

    @property
    def bound(self) -> str:
        """What limits most of the time."""
        by_bound = self._seconds_by(6)
        return max(by_bound, key=by_bound.__getitem__)

    def _seconds_by(self, field: int) -> dict[str, float]:
        seconds: dict[str, float] = {}
        for line in self.lines:
            seconds[line[field]] = seconds.get(line[field], 0.0) + line[3]
        return seconds


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
