"""A phase of a prediction: its operators added up by role, with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import sqrt
from operator import itemgetter
from typing import NamedTuple

from chip import ops
from chip.predictor.operator_time import OF_POINTS
from chip.predictor.program import ProgramTimes, TimedStep
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


NUMBERS = 8
line_of = partial(tuple.__new__, Line)  # from a tuple of all fields: twice as fast as Line(...)


Words = tuple[str, str, str]  # kind, bound and source
Numbers = Sequence[float]  # calls, seconds, low_s, high_s, flops, bytes, joules, and seconds at the power limit


def lines_of(steps: Sequence[TimedStep], slower: float) -> list[Line]:
    """A line for each role, all steps added up by their weights; kind, bound and source are those of the longest part.
    `slower`: the part that seconds at the power limit take more."""
    totals: dict[str, tuple[Words, Numbers]] = {}
    weights: dict[ProgramTimes, float] = {}
    for step in steps:
        weight = step.run.weight
        weights[step.layers] = weights.get(step.layers, 0.0) + weight
        weights[step.head] = weights.get(step.head, 0.0) + weight
        for call, t in zip(step.layers.shape.attention_calls, step.attention):
            n = weight * call.repeat
            numbers = (
                n,
                n * t.seconds,
                n * t.low_s,
                n * t.high_s,
                n * t.flops,
                n * t.bytes,
                n * t.joules,
                n * t.limited_s,
            )
            _add(totals, call.role, (call.kind, t.bound, t.source), numbers)
    for shape in dict.fromkeys(part.shape for part in weights):
        parts = [(part, weight) for part, weight in weights.items() if part.shape is shape]
        longest, columns = parts[0][0], [[0.0] * len(shape.roles)] * NUMBERS
        for part, weight in parts:
            columns = [[a + weight * b for a, b in zip(total, more)] for total, more in zip(columns, part.columns)]
        for (role, kind), (operator, _), *numbers in zip(shape.roles, shape.calls, *columns):
            time = longest.times[operator]
            _add(totals, role, (kind, time.bound, time.source), numbers)
    return [_line(role, *words, slower, *numbers) for role, (words, numbers) in totals.items()]


def _add(totals: dict[str, tuple[Words, Numbers]], role: str, words: Words, numbers: Numbers) -> None:
    if role in totals:
        known_words, known = totals[role]
        words = words if numbers[1] >= known[1] else known_words
        numbers = [a + b for a, b in zip(known, numbers)]
    totals[role] = words, numbers


def _line(
    role: str, kind: str, bound: str, source: str, slower: float, calls: float, seconds: float, low_s: float,
    high_s: float, flops: float, moved: float, joules: float, limited_s: float,
) -> Line:  # fmt: skip
    """All of a role at the clock of its phase."""
    if limited_s:
        factor = 1 + slower * limited_s / seconds
        seconds, low_s, high_s = seconds * factor, low_s * factor, high_s * factor
    return line_of((role, kind, calls, seconds, low_s, high_s, bound, source, flops, moved, joules))


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
