"""Seconds of an operator on a GPU: from measured points where its kernel has them, from its base time where not.

An answer is a plain tuple (`chip.predict.limits`): a sweep asks for hundreds of thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import exp, inf
from typing import Any

from chip import hardware, links
from chip.hardware import Hardware
from chip.ops.attention import Attention
from chip.ops.collective import Collective
from chip.ops.composed import Composed
from chip.ops.masked_attention import MaskedAttention
from chip.ops.mla_prompt import MlaPrompt
from chip.predict.bases import BORROWED_SPREAD, Bases
from chip.predict.interpolate import Z90, Points, TimedPoint
from chip.predict.kernel_points import KernelPoints
from chip.predict.library import Library, library
from chip.predict.limits import INTERPOLATED, UNLIMITED, Answer, Peaks, peaks_of
from chip.predict.rising_grid import RisingGrid, Timed, Times
from chip.predict.roof import Roof, roof_of
from chip.predict.sheet import BaseSheet, Sheet
from chip.predict.stages import ALL, Stage
from chip.records import replace
from chip.types import ChipError, Cost, Estimate, Op, Seq

REFERENCE = "h200"  # the GPU whose fitted bases stand in for those of others
MOST_GRIDS = 32
FEW = Seq(2, 0, 1)  # new tokens, of one sequence


def answer(estimate: Estimate, cost: Cost, held_s: float = 0.0) -> Answer:
    seconds, low_s, high_s, source, bound = estimate
    return seconds, low_s, high_s, bound, source, cost[0], cost[1] + cost[2], held_s


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

    def __call__(self, op: Op) -> tuple[Estimate, Cost]:
        """An operator on its own: attention never takes less time for more sequences, queries or keys."""
        return self._not_above_peaks(op, *(self._risen(op) or self._asked(op)))

    def at_once(self, op: Op) -> tuple[Estimate, Cost]:
        """The same without looking at smaller ones: what a program asks for that no sheet has."""
        return self._not_above_peaks(op, *self._asked(op))

    def placing(self, op: Any) -> Callable[[Seq], Op]:
        """How an operator that depends on sequences is asked for. Few new tokens attend to a latent itself where the
        kernel that does was measured; others expand it first."""
        absorbs = not isinstance(op, MlaPrompt) or self.kernels.of(op.over(FEW)) is not None
        place: Callable[[Seq], Op] = op.over if absorbs else op.expanded
        return place

    def _not_above_peaks(self, op: Op, found: Estimate, cost: Cost) -> tuple[Estimate, Cost]:
        least_s = self.peaks.least_s(op.compute, cost[0], cost[1] + cost[2])
        if found.seconds < least_s:
            high_s = max(found.high_s, least_s)
            found = found._replace(seconds=least_s, low_s=max(found.low_s, least_s), high_s=high_s)
        return found, cost

    def _asked(self, op: Op) -> tuple[Estimate, Cost]:
        cost = op.cost()
        if isinstance(op, Collective):
            return self._over_link(op), cost
        like, points = op.like_measured(), self.kernels.of(op)
        if like is not None and points is not None:
            return self._interpolated(self._looked_up(like, points), op, cost), cost
        if isinstance(op, Composed):
            return self._summed(op), cost
        if points is not None and isinstance(op, Attention) and op.window:
            return self._windowed(points, op, cost), cost
        return self._from_base(op, cost), cost

    def _looked_up(self, op: Op, points: Points) -> TimedPoint:
        """What grows along one axis lies on the same curve as in a sweep, so that it never falls along it. Where keys
        are not aligned, it takes no less than if they were."""
        if isinstance(op, Composed) and op.q_len > 1:
            return max(points.seconds(op, (*op.place()[:-1], a)) for a in op.alignments())
        if len(op.GROWS) != 1:
            return points.seconds(op)
        (axis,) = op.GROWS
        curve = self.kernels.curve(replace(op, **{axis: 1}), points)  # type: ignore[type-var]
        return TimedPoint(*curve.at(getattr(op, axis))[:2])

    def _risen(self, op: Op) -> tuple[Estimate, Cost] | None:
        """Attention over a grid of all its sizes. Where keys are not aligned, it takes no less than if they were."""
        if not isinstance(op, (Attention, MaskedAttention)) or op.q_len > op.kv_len:
            return None
        points, cost = self.kernels.of(op), op.cost()
        if isinstance(op, Composed) and (points is None or op.window):
            return None
        whole = op.unwindowed() if isinstance(op, Attention) else op
        share = cost[0] / whole.cost()[0] if whole is not op else 1.0
        sizes = whole.batch, whole.q_len, whole.kv_len
        if points is None or whole.like_measured() is None:
            value, fast, slow = (base.over(whole.sized) for base in self.bases.of(op, ""))
            grid = self._grid(whole, lambda b, q, keys: [(value(b, q, n), 0.0) for n in keys])
            seconds = share * grid(*sizes)[0]
            off = seconds / value(*sizes)
            low_s, high_s = off * fast(*sizes), off * slow(*sizes)
            return Estimate(seconds, low_s, high_s, self.roof.source, self._bound(op, cost, seconds)), cost
        found = max(self._by_alignment(whole, points))
        spread = found[1] + (BORROWED_SPREAD / 2 if share < 1 else 0.0)
        return self._interpolated(TimedPoint(found[0] * share, spread), op, cost), cost

    def _by_alignment(self, op: Attention | MaskedAttention, points: Points) -> list[Timed]:
        """With its keys aligned, and as they are where they are not."""
        grids = [self._grid(op, _timed(points, op, a), a) for a in op.alignments()]
        return [grid(op.batch, op.q_len, op.kv_len) for grid in grids]

    def is_unaligned(self, op: Op) -> bool:
        """Whether points show that it takes longer than with a few keys more."""
        if not isinstance(op, (Attention, MaskedAttention)) or len(op.alignments()) == 1 or op.like_measured() is None:
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

    def _grid(self, op: Attention | MaskedAttention, times: Times, alignment: float | None = None) -> RisingGrid:
        key = op.sized(1, 1, 1), alignment
        found = self._grids.get(key)
        if found is None:
            if len(self._grids) >= MOST_GRIDS:
                self._grids.clear()
            found = self._grids[key] = RisingGrid(times)
        return found

    def _interpolated(self, found: TimedPoint, op: Op, cost: Cost) -> Estimate:
        seconds, spread = found
        off = exp(Z90 * spread)
        return Estimate(seconds, seconds / off, seconds * off, INTERPOLATED, self._bound(op, cost, seconds))

    def _windowed(self, points: Points, op: Attention, cost: Cost) -> Estimate:
        """A prompt longer than its window: as attention to all that is in sight, less what the window hides."""
        whole = op.unwindowed()
        seconds, spread = points.seconds(whole)
        share = cost[0] / whole.cost()[0]
        return self._interpolated(TimedPoint(seconds * share, spread + BORROWED_SPREAD / 2), op, cost)

    def _summed(self, op: Composed) -> Estimate:
        """An operator of several kernels as the sum of its parts. Source and bound are those of the longest part."""
        found = [self(part)[0] for part in op.parts()]
        seconds, low_s, high_s = (sum(part) for part in zip(*[(e.seconds, e.low_s, e.high_s) for e in found]))
        longest = max(found, key=lambda e: e.seconds)
        return Estimate(seconds, low_s, high_s, longest.source, longest.bound)

    def _from_base(self, op: Op, cost: Cost) -> Estimate:
        bases = self.bases.of(op, "")
        if isinstance(op, Attention) and op.unwindowed() is not op:
            whole = op.unwindowed()
            share = cost[0] / whole.cost()[0]
            seconds, low_s, high_s = (share * base.seconds(whole) for base in bases)
        elif isinstance(op, Attention) and op.q_len < op.kv_len:
            # a kernel that cuts its keys into more parts takes less time by its base: never less than for fewer keys
            times = [base.over(op.sized) for base in bases]
            sheet = BaseSheet(op.sized, lambda _, keys: (op.batch, op.q_len, max(keys, op.q_len)), *times)
            seconds, low_s, high_s = sheet(1, op.kv_len)
        else:
            seconds, low_s, high_s = (base.seconds(op) for base in bases)
        return Estimate(seconds, low_s, high_s, self.roof.source, self._bound(op, cost, seconds))

    def _over_link(self, op: Collective) -> Estimate:
        roof, size = self.roof, op.tensor_bytes
        if roof.link is None:
            raise ChipError(f"several GPUs cannot be predicted of {roof.name}: {roof.ranks_need}")
        if roof.link.given:
            found = links.over(op.kind, size, op.ranks, roof.link)
            return Estimate(found.seconds, found.low_s, found.high_s, "datasheet", "link")
        if hardware.is_known(roof.name):
            found = links.collective(op.kind, size, op.ranks, roof.name.lower(), "vllm")
            source = "datasheet" if found.source == "formula" else INTERPOLATED
            return Estimate(found.seconds, found.low_s, found.high_s, source, "link")
        seconds = links.formula(op.kind, size, op.ranks, roof.link)
        return Estimate(seconds, seconds, 2 * seconds, "datasheet", "link")

    def rates(self, op: Op) -> tuple[float, float]:
        """FLOP/s and B/s under which it is said to be bound."""
        roof, name = self.roof, op.compute
        return roof.compute[name].value if name in roof.compute else inf, roof.moving(name).value

    def _bound(self, op: Op, cost: Cost, seconds: float) -> str:
        rate, moving = self.rates(op)
        return _longest(cost[0] / rate, (cost[1] + cost[2]) / moving, seconds)


def _timed(points: Points, op: Attention | MaskedAttention, alignment: float | None) -> Times:
    """An attention among its points, whatever its keys, as if they were so aligned."""
    base = points.base.over(op.sized)

    def times(batch: int, q_len: int, keys: Sequence[int]) -> list[Timed]:
        places = [op.sized(batch, q_len, n).place() for n in keys]
        if alignment is not None and q_len > 1:
            places = [(*place[:-1], alignment) for place in places]
        found = points.corrections(places)
        return [(base(batch, q_len, n) * exp(c.value), c.spread) for n, c in zip(keys, found)]

    return times


def _longest(arithmetic_s: float, memory_s: float, seconds: float) -> str:
    """What bounds an operator: arithmetic, memory, or everything that is neither."""
    longer = arithmetic_s if arithmetic_s > memory_s else memory_s
    if seconds > 2 * longer:
        return "launch"
    return "compute" if arithmetic_s == longer else "memory"


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
