"""Seconds of an operator on a GPU: from measured points where its kernel has them, from its base time where not.

An answer is a plain tuple (`chip.predict.limits`): a sweep asks for hundreds of thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import exp, inf

from chip import hardware, links
from chip.hardware import Hardware
from chip.ops.attention import AnyAttention
from chip.ops.collective import Collective
from chip.predict.bases import BORROWED_SPREAD, Bases
from chip.predict.interpolate import Z90, Points, TimedPoint
from chip.predict.kernel_points import KernelPoints
from chip.predict.library import Library, library
from chip.predict.limits import INTERPOLATED, UNLIMITED, Answer, Peaks, added, at_least, peaks_of
from chip.predict.rising_grid import RisingGrid, Timed, Times
from chip.predict.roof import Roof, roof_of
from chip.predict.sheet import BaseSheet, Sheet
from chip.predict.stages import ALL, Stage
from chip.records import replace
from chip.types import ChipError, Op

REFERENCE = "h200"  # the GPU whose fitted bases stand in for those of others
MOST_GRIDS = 32
Answering = Callable[[float, float, float, float, float, float], Answer]


class Estimator:
    """Answers for one GPU, and for what an engine runs on it (`chip.predict.kernel_points`)."""

    def __init__(
        self, roof: Roof, stage: Stage, library: Library | None, runs_as: Mapping[str, str] | None = None,
        reference: Estimator | None = None, peaks: Peaks = UNLIMITED,
    ) -> None:  # fmt: skip
        self.bases: Bases = Bases(roof, stage, library, runs_as, reference.bases if reference else None)
        self.kernels = KernelPoints(library, runs_as, self.bases)
        self.roof, self.settling, self.peaks = roof, self.bases.settling, peaks
        self.has_points, self.of_engine = library is not None, runs_as is not None
        self.sheets: dict[tuple[Op, object], Sheet | BaseSheet] = {}  # of `chip.predict.growing`
        self._grids: dict[tuple[Op, float | None], RisingGrid] = {}

    def __call__(self, op: Op) -> Answer:
        """An operator on its own: attention never takes less time for more sequences, queries or keys."""
        return self._risen(op) or self.at_once(op)

    def at_once(self, op: Op) -> Answer:
        """The same without looking at smaller ones: what a program asks for that no sheet has."""
        if isinstance(op, Collective):
            return self._over_link(op)
        like, points = op.like_measured(), self.kernels.of(op)
        if like is not None and points is not None:
            return self._interpolated(op, *self._looked_up(like, points))
        if op.parts():
            return self._summed(op)
        if points is not None and isinstance(op, AnyAttention) and op.unwindowed() is not op:
            return self._windowed(points, op)
        return self._from_base(op)

    def answering(self, op: Op, source: str) -> Answering:
        """From seconds, their bounds, FLOPs and bytes to an answer: what limits it, and no less than peaks allow."""
        roof, compute, peaks = self.roof, op.compute, self.peaks
        rate = roof.compute[compute].value if compute in roof.compute else inf
        moving = roof.moving(compute).value
        peak, memory = peaks.compute.get(compute, inf), peaks.bytes_per_s

        def answered(seconds: float, low_s: float, high_s: float, flops: float, moved: float, held_s: float) -> Answer:
            longer_s, bound = flops / rate, "compute"
            if moved > moving * longer_s:
                longer_s, bound = moved / moving, "memory"
            bound = "launch" if seconds > 2 * longer_s else bound
            found = seconds, low_s, high_s, bound, source, flops, moved, held_s
            if flops <= peak * seconds and moved <= memory * seconds:
                return found
            return at_least(found, peaks.least_s(compute, flops, moved))

        return answered

    def _looked_up(self, op: Op, points: Points) -> TimedPoint:
        """What grows along one axis lies on the same curve as in a sweep, so that it never falls along it. Where keys
        are not aligned, it takes no less than if they were."""
        if isinstance(op, AnyAttention):
            return max(points.seconds(op, op.aligned(a)) for a in op.alignments())
        if len(op.GROWS) != 1:
            return points.seconds(op)
        (axis,) = op.GROWS
        curve = self.kernels.curve(replace(op, **{axis: 1}), points)  # type: ignore[type-var]
        return TimedPoint(*curve.at(getattr(op, axis))[:2])

    def _risen(self, op: Op) -> Answer | None:
        """Attention over a grid of all its sizes. Where keys are not aligned, it takes no less than if they were."""
        if not isinstance(op, AnyAttention) or op.q_len > op.kv_len:
            return None
        points, cost, whole = self.kernels.of(op), op.cost(), op.unwindowed()
        if op.parts() and (points is None or whole is not op):
            return None
        share = cost[0] / whole.cost()[0] if whole is not op else 1.0
        sizes = whole.batch, whole.q_len, whole.kv_len
        if points is None or whole.like_measured() is None:
            value, fast, slow = (base.over(whole.sized) for base in self.bases.of(op, ""))
            grid = self._grid(whole, lambda b, q, keys: [(value(b, q, n), 0.0) for n in keys])
            seconds = share * grid(*sizes)[0]
            off = seconds / value(*sizes)
            low_s, high_s = off * fast(*sizes), off * slow(*sizes)
            return self._based(op, seconds, low_s, high_s)
        found = max(self._by_alignment(whole, points))
        spread = found[1] + (BORROWED_SPREAD / 2 if share < 1 else 0.0)
        return self._interpolated(op, found[0] * share, spread)

    def _by_alignment(self, op: AnyAttention, points: Points) -> list[Timed]:
        """With its keys aligned, and as they are where they are not."""
        grids = [self._grid(op, _timed(points, op, a), a) for a in op.alignments()]
        return [grid(op.batch, op.q_len, op.kv_len) for grid in grids]

    def is_unaligned(self, op: Op) -> bool:
        """Whether points show that it takes longer than with a few keys more."""
        if not isinstance(op, AnyAttention) or len(op.alignments()) == 1 or op.like_measured() is None:
            return False
        points = self.kernels.of(op)
        aligned, as_is = self._by_alignment(op, points) if points else ((0.0, 0.0), (0.0, 0.0))
        return as_is[0] > aligned[0]

    def is_raised(self, op: Op) -> bool:
        """Whether points of fewer rows show it to take longer than its own."""
        like, points = op.like_measured(), self.kernels.of(op)
        if like is None or points is None or len(like.GROWS) != 1:
            return False
        (axis,) = like.GROWS
        return self.kernels.curve(replace(like, **{axis: 1}), points).is_raised(getattr(like, axis))  # type: ignore[type-var]

    def _grid(self, op: AnyAttention, times: Times, alignment: float | None = None) -> RisingGrid:
        key = op.sized(1, 1, 1), alignment
        found = self._grids.get(key)
        if found is None:
            if len(self._grids) >= MOST_GRIDS:
                self._grids.clear()
            found = self._grids[key] = RisingGrid(times)
        return found

    def _interpolated(self, op: Op, seconds: float, spread: float) -> Answer:
        flops, read, written = op.cost()
        off, held_s = exp(Z90 * spread), self.kernels.held_s(op)(flops, seconds)
        return self.answering(op, INTERPOLATED)(seconds, seconds / off, seconds * off, flops, read + written, held_s)

    def _based(self, op: Op, seconds: float, low_s: float, high_s: float) -> Answer:
        flops, read, written = op.cost()
        return self.answering(op, self.roof.source)(seconds, low_s, high_s, flops, read + written, 0.0)

    def _windowed(self, points: Points, op: AnyAttention) -> Answer:
        """A prompt longer than its window: as attention to all that is in sight, less what the window hides."""
        whole = op.unwindowed()
        seconds, spread = points.seconds(whole)
        return self._interpolated(op, seconds * op.cost()[0] / whole.cost()[0], spread + BORROWED_SPREAD / 2)

    def _summed(self, op: Op) -> Answer:
        """An operator of several kernels as the sum of its parts."""
        flops, read, written = op.cost()
        return *added([(self(part), 1.0) for part in op.parts()])[:5], flops, read + written, 0.0

    def _from_base(self, op: Op) -> Answer:
        bases = self.bases.of(op, "")
        if not isinstance(op, AnyAttention):
            return self._based(op, *(base.seconds(op) for base in bases))
        whole = op.unwindowed()
        if whole is not op:
            share = op.cost()[0] / whole.cost()[0]
            return self._based(op, *(share * base.seconds(whole) for base in bases))
        if op.CUTS and op.q_len < op.kv_len:  # never less than for fewer keys
            times = [base.over(op.sized) for base in bases]
            sheet = BaseSheet(op.sized, lambda _, keys: (op.batch, op.q_len, max(keys, op.q_len)), *times)
            return self._based(op, *sheet(1, op.kv_len))
        return self._based(op, *(base.seconds(op) for base in bases))

    def _over_link(self, op: Collective) -> Answer:
        roof, size = self.roof, op.tensor_bytes
        if roof.link is None:
            raise ChipError(f"several GPUs cannot be predicted of {roof.name}: {roof.ranks_need}")
        if roof.link.given:
            found = links.over(op.kind, size, op.ranks, roof.link)
        elif hardware.is_known(roof.name):
            found = links.collective(op.kind, size, op.ranks, roof.name.lower(), "vllm")
        else:
            seconds = links.formula(op.kind, size, op.ranks, roof.link)
            found = links.Transfer(seconds, seconds, 2 * seconds, "formula")
        source = "datasheet" if found.source == "formula" else INTERPOLATED
        flops, read, written = op.cost()
        return found.seconds, found.low_s, found.high_s, "link", source, flops, read + written, 0.0


def _timed(points: Points, op: AnyAttention, alignment: float | None) -> Times:
    """An attention among its points, whatever its keys, as if they were so aligned."""
    base = points.base.over(op.sized)

    def times(batch: int, q_len: int, keys: Sequence[int]) -> list[Timed]:
        found = points.corrections([op.sized(batch, q_len, n).aligned(alignment) for n in keys])
        return [(base(batch, q_len, n) * exp(c.value), c.spread) for n, c in zip(keys, found)]

    return times


def estimator_of(h: Hardware, runs_as: Mapping[str, str] | None = None, stage: Stage = ALL) -> Estimator:
    """`runs_as`: which kernel an engine runs of each operator. `stage`: what it may rest on."""
    return _estimator(h, None if runs_as is None else tuple(runs_as.items()), stage)


@lru_cache(maxsize=128)  # models on one GPU and engine share what its points say; a ranking asks all GPUs
def _estimator(h: Hardware, chosen: tuple[tuple[str, str], ...] | None, stage: Stage) -> Estimator:
    runs_as = None if chosen is None else dict(chosen)
    if stage < Stage.POINTS:
        return Estimator(roof_of(h, stage), stage, None, runs_as, peaks=peaks_of(h))
    found = library(h.points) if h.points else None
    if found and h.profile is not None and found.device and found.device != h.profile.device:
        raise ChipError(f"{h.points[0]}: holds points of {found.device}, the profile is of {h.profile.device}")
    # a device with ceilings of its own is taken at those
    like = None if h.profile is not None else estimator_of(hardware.find(REFERENCE), runs_as)
    return Estimator(roof_of(h), stage, found, runs_as, like, peaks_of(h))
