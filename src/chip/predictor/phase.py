"""A phase of a prediction: what its operators take together, with intervals, and by role."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from math import sqrt
from operator import itemgetter
from typing import NamedTuple

from chip import ops
from chip.predictor.operator_time import OF_POINTS, OperatorTime
from chip.predictor.program import AttentionCall, ProgramTimes, Shape, TimedStep
from chip.predictor.roof import Power
from chip.types import Scenario

BETWEEN_CARDS = 1.03  # ratio between two H200s: 1.027 in products at memory's bandwidth, 1.035 in multiplications
# Source, seconds, low_s, high_s, FLOPs of products, joules and bytes of a role that attends
Attending = tuple[str, float, float, float, float, float, float]
ENGINE = "engine"  # source and kind of the rows that belong to no operator


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


def _weights(steps: Sequence[TimedStep]) -> dict[ProgramTimes, float]:
    """The programs of weighted steps, each with the weight of all its steps."""
    weights: dict[ProgramTimes, float] = {}
    for (_, weight, *_), layers, _, head in steps:
        weights[layers] = weights.get(layers, 0.0) + weight
        weights[head] = weights.get(head, 0.0) + weight
    return weights


def _program_lines(shape: Shape, parts: Sequence[tuple[ProgramTimes, float]], slower: float) -> list[Line]:
    """A line for each operator of a program in each role, parts added up by their weights."""
    (first, weight), *others = parts
    columns = first.columns if weight == 1.0 else [[weight * a for a in column] for column in first.columns]
    for part, weight in others:
        columns = [[a + weight * b for a, b in zip(both, more)] for both, more in zip(columns, part.columns)]
    rows, lines, total = list(zip(*columns)), [], sum([weight for _, weight in parts])
    bounds, sources = first.bounds, first.sources
    for role, kind, (i, n) in zip(shape.roles, shape.kinds, shape.counts):
        seconds, low_s, high_s, flops, moved, joules, limited_s = rows[i]
        m = n * (1 + slower * limited_s / seconds) if limited_s else n
        numbers = (m * seconds, m * low_s, m * high_s, bounds[i], sources[i], n * flops, n * moved, n * joules)
        lines.append(line_of((role, kind, n * total, *numbers)))
    return lines


def _attending(steps: Sequence[TimedStep], slower: float) -> dict[str, Attending]:
    """What each role that attends takes in all steps."""
    by_role: dict[str, Attending] = {}
    for step in steps:
        for call, t in zip(step.layers.shape.attention_calls, step.attention):
            n = step.run.weight * call.repeat
            each = n * (1 + slower * t.limited_s / t.seconds) if t.limited_s else n
            flops = n * t.flops if ops.multiplies(call.kind) else 0.0
            source, seconds, low_s, high_s = t.source, each * t.seconds, each * t.low_s, each * t.high_s
            joules, moved = n * t.joules, n * t.bytes
            if call.role in by_role:
                other = by_role[call.role]
                source = source if seconds >= other[1] else other[0]
                seconds, low_s, high_s = seconds + other[1], low_s + other[2], high_s + other[3]
                flops, joules, moved = flops + other[4], joules + other[5], moved + other[6]
            by_role[call.role] = source, seconds, low_s, high_s, flops, joules, moved
    return by_role


def attention_lines(steps: Sequence[TimedStep], slower: float) -> list[Line]:
    """A line for each role that attends."""
    lines = [
        _line_of_call(call, time, step.run.weight * call.repeat, slower)
        for step in steps
        for call, time in zip(step.layers.shape.attention_calls, step.attention)
    ]
    return _by_role(lines) if len(lines) > 1 else lines


def _line_of_call(call: AttentionCall, t: OperatorTime, calls: float, slower: float) -> Line:
    each = calls * (1 + slower * t.limited_s / t.seconds) if t.limited_s else calls
    return line_of((
        call.role, call.kind, calls, each * t.seconds, each * t.low_s, each * t.high_s, t.bound, t.source,
        calls * t.flops, calls * t.bytes, calls * t.joules,
    ))  # fmt: skip


def _by_role(lines: Iterable[Line]) -> list[Line]:
    """Lines of one role added up; kind, bound and source are those of the longest."""
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


class Operators:
    """All operators of a phase: their seconds with an interval, and their lines, which a sweep does without."""

    def __init__(self, steps: Sequence[TimedStep], slower: float, scale: float = 1.0) -> None:
        """`slower`: the part that seconds at the power limit take more. `scale`: see `_bounds`."""
        self._steps, self._weights, self._slower = steps, _weights(steps), slower
        self.seconds = self.joules = self.flops = 0.0
        below = above = unmeasured_s = 0.0
        shared: dict[str, tuple[float, float]] = {}
        self._by_shape: dict[Shape, list[tuple[ProgramTimes, float]]] = {}
        for part, weight in self._weights.items():
            self._by_shape.setdefault(part.shape, []).append((part, weight))
            seconds, limited_s, flops, joules, unmeasured = part.sums
            self.seconds += weight * (seconds + slower * limited_s)
            self.flops += weight * flops
            self.joules += weight * joules
            unmeasured_s += weight * unmeasured
            for source, (low, high, low_limited, high_limited) in part.shared_s.items():
                low, high = low + slower * low_limited, high + slower * high_limited
                _share(shared, source, weight * low, weight * high)
        for (part, weight), *others in self._by_shape.values():
            off_s = part.off_s if weight == 1.0 else [[weight * s for s in column] for column in part.off_s]
            for other, weight in others:
                off_s = [[a + weight * b for a, b in zip(*both)] for both in zip(off_s, other.off_s)]
            lows, highs, low_limited_s, high_limited_s = off_s
            below += sum([(a + slower * b) ** 2 for a, b in zip(lows, low_limited_s)])
            above += sum([(a + slower * b) ** 2 for a, b in zip(highs, high_limited_s)])
        self._attending = _attending(steps, slower)
        for source, seconds, low_s, high_s, flops, joules, _ in self._attending.values():
            self.seconds += seconds
            self.joules += joules
            self.flops += flops
            low, high = seconds - low_s, high_s - seconds
            if source in OF_POINTS:
                below += low * low
                above += high * high
            else:
                unmeasured_s += seconds
                _share(shared, source, low, high)
        self.points_s = self.seconds - unmeasured_s
        self.low_s, self.high_s = _bounds(self.seconds, below, above, shared, scale)

    @cached_property
    def lines(self) -> list[Line]:
        lines = attention_lines(self._steps, self._slower)
        for shape, parts in self._by_shape.items():
            lines += _program_lines(shape, parts, self._slower)
        return _by_role(lines)

    def by_clock_s(self, bytes_per_s: float) -> float:
        """Seconds that memory and links do not set."""
        total = sum([max(0.0, n[1] - n[6] / bytes_per_s) for n in self._attending.values()])
        for part, weight in self._weights.items():
            seconds, _, _, _, moved, _, _ = part.columns
            for i, n in part.shape.counts:
                own_s = seconds[i] - moved[i] / bytes_per_s
                if own_s > 0.0 and part.bounds[i] != "link":
                    total += weight * n * own_s
        return total


class Phase:
    """Prefill (until the last first token) or the mean decode step: its lines, longest first, and their sums."""

    def __init__(self, lines: Iterable[Line], low_s: float, high_s: float) -> None:
        self.lines = sorted(lines, key=itemgetter(3), reverse=True)
        self.seconds, self.joules = sum([n.seconds for n in self.lines]), sum([n.joules for n in self.lines])
        self.engine_s = sum([n.seconds for n in self.lines if n.source == ENGINE])
        self.points_s = sum([n.seconds for n in self.lines if n.source in OF_POINTS])
        self.low_s, self.high_s = min(low_s, self.seconds), max(high_s, self.seconds)
        # of a prefill: tokens that early requests decode beside other prompts, and what these took together
        self.early_tokens = self.early_s = 0.0

    def engine_row_s(self, role: str) -> float:
        """Seconds of a row that belongs to no operator."""
        return sum([n.seconds for n in self.lines if n.role == role])

    @cached_property
    def matmul_flops(self) -> float:
        return sum([n.flops for n in self.lines if ops.multiplies(n.kind)])

    @cached_property
    def seconds_by_source(self) -> dict[str, float]:
        return _seconds_by([(n.source, n.seconds) for n in self.lines])

    @property
    def bound(self) -> str:
        """What limits most of the time."""
        by_bound = _seconds_by([(n.bound, n.seconds) for n in self.lines])
        return max(by_bound, key=by_bound.__getitem__)


def _seconds_by(words: Iterable[tuple[str, float]]) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for word, more in words:
        seconds[word] = seconds.get(word, 0.0) + more
    return seconds


class StepPhase(Phase):
    """A phase of timed steps: its lines are made when they are asked for."""

    def __init__(
        self, operators: Operators, engine_rows: Sequence[Line], low_s: float, high_s: float, power: Power | None,
        played_s: float,
    ) -> None:  # fmt: skip
        """`played_s`: what the phase took on the timeline; the power limit holds its mean over a tenth of a second and
        more, so that what the device waits counts."""
        self._operators, self._engine_rows = operators, engine_rows
        self.engine_s, self.points_s = sum([n[3] for n in engine_rows]), operators.points_s
        self.matmul_flops = operators.flops
        self.seconds = operators.seconds + self.engine_s
        self.low_s, self.high_s = min(low_s, self.seconds), max(high_s, self.seconds)
        self.joules = power.within(operators.joules, played_s) if power else operators.joules
        self.early_tokens = self.early_s = 0.0

    def engine_row_s(self, role: str) -> float:
        return sum([n[3] for n in self._engine_rows if n[0] == role])

    @cached_property
    def lines(self) -> list[Line]:  # type: ignore[override]
        lines, total = [*self._operators.lines, *self._engine_rows], self._operators.joules
        if self.joules != total:
            lines = [line_of((*n[:-1], n[-1] * self.joules / total)) for n in lines]
        return sorted(lines, key=itemgetter(3), reverse=True)


def request_tpot_s(prefill: Phase, decode: Phase, s: Scenario) -> float:
    """Mean over the requests of (last token - first token) / (output - 1), as traffic is measured. A request that has
    its first token early decodes beside other prompts."""
    tokens = s.batch * (s.output - 1)
    return decode.seconds + (prefill.early_s - prefill.early_tokens * decode.seconds) / tokens


def interval(lines: Iterable[Line], scale: float = 1.0) -> tuple[float, float, float]:
    """Seconds of all lines together: expected, low, high."""
    seconds = below = above = 0.0
    shared: dict[str, tuple[float, float]] = {}
    for n in lines:
        low, high = n.seconds - n.low_s, n.high_s - n.seconds
        seconds += n.seconds
        if n.source in OF_POINTS:
            below += low * low
            above += high * high
        else:
            _share(shared, n.source, low, high)
    return seconds, *_bounds(seconds, below, above, shared, scale)


def _share(shared: dict[str, tuple[float, float]], source: str, low: float, high: float) -> None:
    known_low, known_high = shared.get(source, (0.0, 0.0))
    shared[source] = known_low + low, known_high + high


def _bounds(
    seconds: float, below: float, above: float, shared: Mapping[str, tuple[float, float]], scale: float
) -> tuple[float, float]:
    """Errors of roles from points are independent and add as squares (`below`, `above`). Those of roles that share a
    roof add linearly (`shared`). Cards differ in everything. `scale` multiplies the logarithm of the width, by the kind
    of GPU (`chip.predictor.basis`)."""
    for low, high in shared.values():
        below += low * low
        above += high * high
    of_cards = (seconds * (BETWEEN_CARDS - 1)) ** 2
    low_s, high_s = max(0.0, seconds - sqrt(below + of_cards)), seconds + sqrt(above + of_cards)
    if scale == 1.0 or not seconds:
        return low_s, high_s
    return seconds * (low_s / seconds) ** scale, seconds * (high_s / seconds) ** scale
