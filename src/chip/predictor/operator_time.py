"""The time of one operator call, and what makes it: base time, points, and the limits of the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from math import exp, hypot, inf
from typing import Any, NamedTuple

from chip import ops
from chip.ops.base_time import BaseTime
from chip.predictor import peaks
from chip.predictor.bases import BaseTimes
from chip.predictor.clock import PowerLimit
from chip.predictor.interpolate import Z90, CorrectionCurve, Points
from chip.predictor.peaks import Carried, Peaks
from chip.predictor.roof import Roof
from chip.types import Op

INTERPOLATED = "interpolated"  # the source of times from points that CHIP measured on the GPU
IMPORTED = "imported"  # of times from points that others published
SCALED = "scaled"  # of times from points of another GPU of the same chip
DATASHEET = "datasheet"  # of base times under a datasheet's rates
OF_POINTS = frozenset((INTERPOLATED, IMPORTED, SCALED))


class OperatorTime(NamedTuple):
    seconds: float
    low_s: float
    high_s: float
    bound: str  # compute, memory, launch or link
    source: str
    flops: float
    bytes: float
    limited_s: float = 0.0  # the part of the seconds that the power limit sets (`chip.predictor.clock`)
    joules: float = 0.0  # above idle

    def scaled(self, factor: float) -> OperatorTime:
        """The same work in `factor` times the time."""
        seconds, low_s, high_s, bound, source, flops, moved, limited_s, joules = self
        times = seconds * factor, low_s * factor, high_s * factor
        return OperatorTime(*times, bound, source, flops, moved, limited_s * factor, joules)

    def at_least(self, least_s: float) -> OperatorTime:
        """The same work in no less than `least_s`."""
        if self.seconds >= least_s:
            return self
        return self._replace(seconds=least_s, low_s=max(self.low_s, least_s), high_s=max(self.high_s, least_s))


def weighted_sum(times: Sequence[tuple[OperatorTime, float]]) -> OperatorTime:
    """The sum of times, each with a weight. Bound and source are those of the longest."""
    if len(times) == 1 and times[0][1] == 1.0:
        return times[0][0]
    seconds = low_s = high_s = flops = moved = limited_s = joules = longest_s = 0.0
    bound = source = ""
    for time, weight in times:
        seconds += time.seconds * weight
        low_s += time.low_s * weight
        high_s += time.high_s * weight
        flops += time.flops * weight
        moved += time.bytes * weight
        limited_s += time.limited_s * weight
        joules += time.joules * weight
        if time.seconds * weight >= longest_s:
            longest_s, bound, source = time.seconds * weight, time.bound, time.source
    return OperatorTime(seconds, low_s, high_s, bound, source, flops, moved, limited_s, joules)


class KernelTime:
    """What an operator's kernel is on one GPU, whatever the sizes it is called at: its points or, where it was not
    measured, its base times; and how the GPU limits it."""

    def __init__(
        self, op: Op, roof: Roof, datasheet: Peaks, limit: PowerLimit, points: Points | None, bases: BaseTimes,
        carried: Carried | None = None,
    ) -> None:  # fmt: skip
        """`bases`: of an operator without points. `carried`: from the GPU of the same chip that has the points."""
        self.points, self.bases = points, bases
        self._op, self._datasheet, self._limit, self._carried = op, datasheet, limit, carried
        self._free_flop_per_s = limit.free_flop_per_s
        self._source = roof.source
        if points is not None:
            self._source = SCALED if carried else IMPORTED if points.imported else INTERPOLATED
        compute, power = op.compute, roof.power
        self._compute, self._peak = compute, datasheet.compute.get(compute, inf)
        self._flop_per_s = roof.compute[compute].value if compute in roof.compute else inf
        self._bytes_per_s, self._floor_s = roof.moving(op).value, inf
        if self._source == roof.source and type(base := bases[0]) is BaseTime:
            self._flop_per_s, self._bytes_per_s, self._floor_s = base.flop_per_s, base.bytes_per_s, base.floor_s
        self._byte_j = power.per_byte_j if power else 0.0
        self._flop_j = power.per_flop_j[compute] if power and ops.multiplies(op.kind) else 0.0

    def interpolated(self, seconds: float, spread: float, flops: float, moved: float) -> OperatorTime:
        """The time by its points, which say `seconds`."""
        if flops > self._free_flop_per_s * seconds:
            seconds = self._limit.at_same_clock(seconds, flops)
        if self._carried is not None:
            seconds, spread = self._carried.seconds(self._op, flops, moved, seconds), hypot(spread, peaks.SPREAD)
        off = exp(Z90 * spread)
        limited_s = self._limit.limited_s(seconds, flops) if flops > self._free_flop_per_s * seconds else 0.0
        return self.timed(seconds, seconds / off, seconds * off, flops, moved, limited_s)

    def timed(
        self, seconds: float, low_s: float, high_s: float, flops: float, moved: float, limited_s: float = 0.0
    ) -> OperatorTime:
        """The time with its bound and energy, no less than the datasheet's peaks allow."""
        roof_s, bound = flops / self._flop_per_s, "compute"
        if moved > self._bytes_per_s * roof_s:
            roof_s, bound = moved / self._bytes_per_s, "memory"
        if 2 * roof_s < seconds < 2 * self._floor_s:
            bound = "launch"
        joules = flops * self._flop_j + moved * self._byte_j
        time = OperatorTime(seconds, low_s, high_s, bound, self._source, flops, moved, limited_s, joules)
        if flops <= self._peak * seconds and moved <= self._datasheet.bytes_per_s * seconds:
            return time
        return time.at_least(self._datasheet.least_s(self._compute, flops, moved))


class OperatorCurve:
    """The time of an operator over the number of tokens."""

    def __init__(self, kernel: KernelTime, op: Op, like: Op | None) -> None:
        """`op`: for one token. `like`: the one that its points are of, None for a time by its base times alone."""
        self._kernel, self._make = kernel, grown(op)
        self._linear_cost = _linear_cost(self._make)
        self._corrections: CorrectionCurve | None = None
        self._nodes: dict[int, tuple[float, float, float]] = {}
        if like is not None and kernel.points is not None:
            points, make = kernel.points, grown(like)
            self._bases = [points.base.over(make)]
            self._corrections = points.curve(like, lambda tokens: make(tokens).place())
        else:
            self._bases = [base.over(self._make) for base in kernel.bases]

    def time(self, tokens: int) -> OperatorTime:
        if self._linear_cost is not None:
            fixed_flops, flops_each, fixed_bytes, bytes_each = self._linear_cost
            flops, moved = fixed_flops + flops_each * tokens, fixed_bytes + bytes_each * tokens
        else:
            flops, read, written = self._make(tokens).cost()
            moved = read + written
        if self._corrections is None:
            seconds, fast_s, slow_s = [base(tokens) for base in self._bases]
            return self._kernel.timed(seconds, fast_s, slow_s, flops, moved)
        power = 1 << tokens.bit_length() - 1
        seconds, value, spread = self._node(power)
        if tokens > power:  # as far on the way to the next power of two as the base time is
            (above_s, more, wider), below_s, seconds = self._node(2 * power), seconds, self._bases[0](tokens)
            share = (seconds - below_s) / (above_s - below_s) if above_s > below_s else tokens / power - 1
            value, spread = value + (more - value) * share, spread + (wider - spread) * share
        return self._kernel.interpolated(seconds * exp(value), spread, flops, moved)

    def _node(self, tokens: int) -> tuple[float, float, float]:
        """Base time and correction at a power of two."""
        if tokens not in self._nodes and self._corrections is not None:
            self._nodes[tokens] = self._bases[0](tokens), *self._corrections.at((tokens,))
        return self._nodes[tokens]


def of_one_token(op: Op) -> tuple[Op, int]:
    """The same operator for one token, and the number of its tokens."""
    axis = fields(op)[op.TOKEN_AXIS].name  # type: ignore[arg-type]
    return replace(op, **{axis: 1}), getattr(op, axis)  # type: ignore[type-var]


def grown(op: Op) -> Callable[[int], Op]:
    """From a number of tokens to an operator that was lowered for one."""
    cls, at = type(op), op.TOKEN_AXIS
    axes: list[Any] = [getattr(op, f.name) for f in fields(op)]  # type: ignore[arg-type]
    before, one, after = axes[:at], axes[at], axes[at + 1 :]
    return lambda tokens: cls(*before, one * tokens, *after)  # type: ignore[call-arg]


def _linear_cost(make: Callable[[int], Op]) -> tuple[float, float, float, float] | None:
    """FLOPs whatever the tokens and for each of them, and bytes likewise; None where they grow otherwise."""
    (f1, b1), (f2, b2), (f4, b4) = ((c.flops, c.bytes) for c in (make(n).cost() for n in (1, 2, 4)))
    if (f4 - f2, b4 - b2) != (2 * (f2 - f1), 2 * (b2 - b1)):
        return None
    return 2 * f1 - f2, f2 - f1, 2 * b1 - b2, b2 - b1
