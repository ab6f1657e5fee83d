"""The time of one operator call, and what makes it: base time, points, and the limits of the GPU.

Attention is timed with given heads for any number of sequences, queries and keys. Under a window it takes a part of the
time over all keys that the queries see between them: the part of its pairs of query and key that the window leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import exp, hypot, inf
from typing import NamedTuple

from chip import ops
from chip.ops import BaseTime
from chip.ops.attention import AnyAttention
from chip.predictor import peaks
from chip.predictor.clock import PowerLimit
from chip.predictor.interpolate import UNKNOWN_SPREAD, Z90, Correction, CorrectionCurve, Points
from chip.predictor.kernels import BORROWED_SPREAD, BaseTimes
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


time_of = partial(tuple.__new__, OperatorTime)  # from a tuple of all fields: twice as fast as OperatorTime(...)


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
        if roof.is_cpu and ops.multiplies(op.kind) and not op.OF_SEQUENCES:
            # all weights of a model lie between two uses of one: no cache has it
            datasheet = Peaks({}, roof.memory, l2_bytes=1.0)
        self.points, self.bases = points, bases
        self._op, self._datasheet, self._limit, self._carried = op, datasheet, limit, carried
        self._free_flop_per_s = limit.free_flop_per_s
        self._source = roof.source
        if points is not None:
            self._source = SCALED if carried else IMPORTED if points.imported else INTERPOLATED
        compute, power = op.compute, roof.power
        self._compute, self._peak = compute, datasheet.compute.get(compute, inf)
        self._peak_bytes_per_s = datasheet.bytes_per_s
        self._flop_per_s = roof.compute[compute].value if compute in roof.compute else inf
        self._bytes_per_s, self._floor_s = roof.moving(op).value, inf
        if self._source == roof.source and type(base := bases[0]) is BaseTime:
            self._flop_per_s, self._bytes_per_s, self._floor_s = base.flop_per_s, base.bytes_per_s, base.floor_s
        self._byte_j = power.per_byte_j if power else 0.0
        self._flop_j = power.per_flop_j[compute] if power and ops.multiplies(op.kind) else 0.0

    def interpolated(self, seconds: float, spread: float, flops: float, moved: float) -> OperatorTime:
        """The time by its points, which say `seconds`."""
        limit, free_flop_per_s = self._limit, self._free_flop_per_s
        if flops > free_flop_per_s * seconds and limit.shift:
            seconds = limit.at_same_clock(seconds, flops)
        if self._carried is not None:
            seconds, spread = self._carried.seconds(self._op, flops, moved, seconds), hypot(spread, peaks.SPREAD)
        off = exp(Z90 * spread)
        limited_s = limit.limited_s(seconds, flops) if flops > free_flop_per_s * seconds else 0.0
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
        time = time_of((seconds, low_s, high_s, bound, self._source, flops, moved, limited_s, joules))
        if flops <= self._peak * seconds and moved <= self._peak_bytes_per_s * seconds:
            return time
        return time.at_least(self._datasheet.least_s(self._compute, flops, moved))


class AttentionTime:
    def __init__(self, kernel: KernelTime, op: AnyAttention, of_parts: Callable[[Op], OperatorTime]) -> None:
        """`of_parts`: the time of an operator of several kernels as the sum of theirs."""
        self._kernel, self._one = kernel, op.sized(1, 1, 1)
        self._of_parts = of_parts if op.parts() else None
        bases = [kernel.points.base] if kernel.points else kernel.bases
        self._base, *self._bounds = [base.over(self._one.sized) for base in bases]
        self._curves: dict[tuple[Callable[..., tuple[int, int, int]], float], CorrectionCurve] = {}

    def time(self, op: AnyAttention) -> OperatorTime:
        """The same heads over the sizes of `op`."""
        whole, points = op.unwindowed(), self._kernel.points
        if self._of_parts is not None and (points is None or whole is not op):
            return self._of_parts(op)
        flops, read, written = op.cost()
        part = 1.0 if whole is op else flops / whole.cost().flops
        sizes = whole.batch, whole.q_len, whole.kv_len
        seconds = part * self._base(*sizes)
        if points is None:
            fast_s, slow_s = [part * base(*sizes) for base in self._bounds]
            return self._kernel.timed(seconds, fast_s, slow_s, flops, read + written)
        value, spread = self._correction(points, whole)
        if part < 1:
            spread += BORROWED_SPREAD / 2
        return self._kernel.interpolated(seconds * exp(value), spread, flops, read + written)

    def mean_time(self, op: AnyAttention) -> OperatorTime:
        """The mean over decode steps whose context grows key by key, where the time depends on the keys' alignment."""
        lengths = op.lengths()
        if len(lengths) == 1:
            return self.time(op)
        flops, read, written = op.cost()
        mean = weighted_sum([(self.time(each), part) for each, part in lengths])
        return mean._replace(flops=flops, bytes=read + written)

    def _correction(self, points: Points, op: AnyAttention) -> Correction:
        form = op.form()
        if form is None:
            return Correction(0.0, UNKNOWN_SPREAD)
        at, sizes = form
        key = at, op.alignment
        if key not in self._curves:
            one, alignment = self._one, op.alignment
            self._curves[key] = points.curve((one, *key), lambda *nodes: one.sized(*at(*nodes)).aligned(alignment))
        return self._curves[key].at(sizes)
