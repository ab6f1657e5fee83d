"""Seconds of an operator on a GPU: from measured points where its kernel has them, from its base time where not.

An answer is a plain tuple (seconds, low, high, bound, source, FLOPs, bytes): a sweep asks for hundreds of thousands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import exp, inf
from typing import Any

from chip import hardware, links
from chip.hardware import Hardware
from chip.ops.attention import Attention, Form
from chip.ops.collective import Collective
from chip.ops.composed import Composed
from chip.ops.elementwise import OverRows
from chip.ops.linear import Linear
from chip.ops.masked_attention import MaskedAttention
from chip.ops.moe_experts import MoeExperts
from chip.points import PointGroup
from chip.predict.base_grid import BaseGrid, StraightCurve
from chip.predict.bases import BORROWED_SPREAD, OF_TORCH, Bases
from chip.predict.interpolate import PRODUCT_NODES, TOKEN_NODES, Z90, Points, Sheet, TimeCurve, TimedPoint
from chip.predict.library import PRODUCT, Library, library
from chip.predict.limits import INTERPOLATED, UNLIMITED, Answer, Peaks, at_least, peaks_of
from chip.predict.rising_grid import RisingGrid, Timed, Times
from chip.predict.roof import Roof, roof_of
from chip.predict.stages import ALL, Stage
from chip.records import fields, replace
from chip.types import ChipError, Cost, Estimate, Op, Seq

AlongTokens = Callable[[int], Answer]
OverSequences = Callable[[Seq], Answer]
Answering = Callable[[float, float, float, float, float], Answer]

SAME_KERNELS = {"fp16": "bf16"}  # as wide and as fast: one template of a kernel, the other type
REFERENCE = "h200"  # the GPU whose fitted bases stand in for those of others
LONGEST_ROUNDING = 4.0  # a tiny product of a published format over one of bf16: above, more was timed than that
WITHOUT_TINY = ("fp8_block",)  # tables without shapes whose time was the host's
LEAST_PRODUCT = 0.5  # of a published time: what is left at least when the rounding before the product is taken off
MOST_GRIDS = 32
MOST_CURVES = 256  # remembered, so that questions of any number are answered in bounded memory
ANY = "*"  # any kernel: what an estimate that names no engine takes


def answer(estimate: Estimate, cost: Cost) -> Answer:
    seconds, low_s, high_s, source, bound = estimate
    return seconds, low_s, high_s, bound, source, cost[0], cost[1] + cost[2]


def grown(op: Op) -> Callable[[int], Op]:
    """The operator of a program lowered for one token, for n tokens."""
    cls, at = type(op), op.TOKEN_AXIS
    axes: list[Any] = [getattr(op, f.name) for f in fields(op)]  # type: ignore[arg-type]
    before, one, after = axes[:at], axes[at], axes[at + 1 :]
    return lambda tokens: cls(*before, one * tokens, *after)  # type: ignore[call-arg]


@lru_cache(maxsize=MOST_CURVES)  # every GPU of a ranking is asked for the same
def _work_along(op: Op) -> Callable[[int], tuple[float, float]]:
    """FLOPs and bytes of an operator lowered for one token, for any number of tokens."""
    make = grown(op)
    (f1, b1), (f2, b2), (f4, b4) = ((c[0], c[1] + c[2]) for c in (make(n).cost() for n in (1, 2, 4)))
    if (f4 - f2, b4 - b2) != (2 * (f2 - f1), 2 * (b2 - b1)):

        def work(tokens: int) -> tuple[float, float]:
            flops, read, written = make(tokens).cost()
            return flops, read + written

        return work
    per_token, per_byte, flops_0, bytes_0 = f2 - f1, b2 - b1, 2 * f1 - f2, 2 * b1 - b2
    return lambda tokens: (flops_0 + per_token * tokens, bytes_0 + per_byte * tokens)


class Estimator:
    """Answers for one GPU. `runs_as` says which kernel an engine runs of each operator, and in which context where that
    is not the warmest measured ("compiled cold"); without it each operator is taken as torch runs it, cold."""

    def __init__(
        self, roof: Roof, stage: Stage, library: Library | None, runs_as: Mapping[str, str] | None = None,
        reference: Estimator | None = None, peaks: Peaks = UNLIMITED,
    ) -> None:  # fmt: skip
        self.bases: Bases = Bases(roof, stage, library, runs_as, reference.bases if reference else None)
        self.roof, self.settling, self._peaks = roof, self.bases.settling, peaks
        self._library, self._runs_as = library, runs_as
        self._sheets: dict[tuple[Op, object], Sheet | BaseGrid | None] = {}
        self._grids: dict[tuple[Op, float | None], RisingGrid] = {}
        self._points: dict[tuple[str, str, str], Points | None] = {}

    @property
    def has_points(self) -> bool:
        return self._library is not None

    # -- which points ---------------------------------------------------------------------------------------------
    def measured_in(self, dtype: str) -> str:
        """The dtype of the points that answer for this one; nothing where there are none."""
        if self._library is None:
            return ""
        return next((d for d in (dtype, SAME_KERNELS.get(dtype, "")) if self._library.has(PRODUCT, d)), "")

    def points(self, op: Op) -> Points | None:
        """Those of the kernel that runs this operator."""
        if self._library is None or not op.place():
            return None
        dtype = getattr(op, "dtype", "")
        wanted = ANY if self._runs_as is None else self._runs_as.get(op.kind, "")
        key = (op.kind, dtype, op.kernel_of("torch"))
        if key not in self._points:
            self._points[key] = self._made(op, wanted, dtype)
        return self._points[key]

    def _made(self, op: Op, wanted: str, dtype: str) -> Points | None:
        assert self._library is not None
        names, _, context = wanted.partition(" ")
        kernels = tuple(op.kernel_of(name) for name in names.split("|")) if wanted != ANY else ()
        known = self._library.groups(op.kind, dtype, kernels)
        if not known and dtype in SAME_KERNELS:
            known = self._library.groups(op.kind, SAME_KERNELS[dtype], kernels)
        if wanted == ANY:
            fitting = [g for g in known if g.kernel == op.kernel_of(g.kernel.split(".")[0])]
            fitting.sort(key=lambda g: (g.context != "cold", g.kernel.split(".")[0] not in OF_TORCH, -len(g.ops)))
        else:
            fitting = [g for g in known if context in ("", g.context)] or list(known)
            warm = "hot" if isinstance(op, OverRows) else "cold"  # activations are warm in cache, weights are not
            fitting.sort(key=lambda g: (g.base is None, kernels.index(g.kernel), g.context != warm))
        if not fitting:
            return self._published(op) if wanted else None
        found = fitting[0]
        return self._library.points(found) if found.base else Points(found, self.bases.of(op, found.kernel)[0])

    def _published(self, op: Op) -> Points | None:
        """Out of tables of others, which have quantised products among the plain ones, their inputs' rounding counted
        in."""
        assert self._library is not None
        kind, form = op.published()
        known, plain = (self._library.groups(kind, f) if kind else () for f in (form, "bf16"))
        more = form not in WITHOUT_TINY and known and plain and _least_s(known) > LONGEST_ROUNDING * _least_s(plain)
        if not known or not plain or more:
            return None
        found = min(known, key=lambda g: (g.context != "cold", -len(g.ops)))
        made, seconds = tuple(op.from_published(o) for o in found.ops), found.seconds
        if (rounding := op.rounded_before()) is not None:
            before = self.bases.of(rounding, "")[0]
            rounded = [before.seconds(each) for o in made if (each := o.rounded_before()) is not None]
            seconds = tuple(max(s - r, LEAST_PRODUCT * s) for s, r in zip(seconds, rounded))
        group = replace(found, kind=op.kind, dtype=getattr(op, "dtype", ""), ops=made, seconds=seconds)
        return Points(group, self.bases.of(op.base_of_published(), "")[0])

    def power(self, op: Op) -> float:
        """Of a FLOP, that of 16 bits being 1: formats that are multiplied at a higher rate take less each."""
        if self.settling is None or isinstance(op, Collective):
            return 1.0
        own = self._library.clock(op.kind, getattr(op, "dtype", "")) if self._library else None
        if own:
            return self.settling.flop_per_s / own.flop_per_s
        plain, rate = (self.roof.compute.get(name) for name in ("matmul_bf16", op.compute))
        return min(1.0, plain.value / rate.value) if plain and rate else 1.0

    # -- one operator ---------------------------------------------------------------------------------------------
    def __call__(self, op: Op) -> tuple[Estimate, Cost]:
        """An operator on its own: attention never takes less time for more sequences, queries or keys."""
        return self._not_above_peaks(op, *(self._risen(op) or self._asked(op)))

    def at_once(self, op: Op) -> tuple[Estimate, Cost]:
        """The same without looking at smaller ones: what a program asks for that no sheet has."""
        return self._not_above_peaks(op, *self._asked(op))

    def _not_above_peaks(self, op: Op, found: Estimate, cost: Cost) -> tuple[Estimate, Cost]:
        least_s = self._peaks.least_s(op.compute, cost[0], cost[1] + cost[2])
        if found.seconds < least_s:
            high_s = max(found.high_s, least_s)
            found = found._replace(seconds=least_s, low_s=max(found.low_s, least_s), high_s=high_s)
        return found, cost

    def _asked(self, op: Op) -> tuple[Estimate, Cost]:
        cost = op.cost()
        if isinstance(op, Collective):
            return self._over_link(op), cost
        like, points = op.like_measured(), self.points(op)
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
        return TimedPoint(*self._curve(replace(op, **{axis: 1}), points).at(getattr(op, axis)))  # type: ignore[type-var]

    def _curve(self, one: Op, points: Points) -> TimeCurve:
        found = points.curves.get(one)
        if found is None:
            if len(points.curves) >= MOST_CURVES:
                points.curves.clear()
            product = isinstance(one, Linear)
            nodes = PRODUCT_NODES if product else TOKEN_NODES
            found = TimeCurve(grown(one), points, nodes, straight=not product, clocked=self._clocked(one))
            points.curves[one] = found
        return found

    def _clocked(self, op: Op) -> Callable[[Op, float], float] | None:
        """Brings points that were timed at another clock to that of all others."""
        own = self._library.clock(op.kind, getattr(op, "dtype", "")) if self._library else None
        if own is None or self.settling is None:
            return None
        shift = self.settling.measured / own.measured - 1
        return lambda op, seconds: seconds * (1 + shift * own.limited(op.cost()[0] / seconds))

    def _risen(self, op: Op) -> tuple[Estimate, Cost] | None:
        """Attention over a grid of all its sizes. Where keys are not aligned, it takes no less than if they were."""
        if not isinstance(op, (Attention, MaskedAttention)) or op.q_len > op.kv_len:
            return None
        points, cost = self.points(op), op.cost()
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
        points = self.points(op)
        aligned, as_is = self._by_alignment(op, points) if points else ((0.0, 0.0), (0.0, 0.0))
        return as_is[0] > aligned[0]

    def is_raised(self, op: Op) -> bool:
        """Whether points of fewer rows show it to take longer than its own."""
        like, points = op.like_measured(), self.points(op)
        if like is None or points is None or len(like.GROWS) != 1:
            return False
        (axis,) = like.GROWS
        return self._curve(replace(like, **{axis: 1}), points).is_raised(getattr(like, axis))  # type: ignore[type-var]

    def _grid(self, op: Attention | MaskedAttention, times: Times, alignment: float | None = None) -> RisingGrid:
        key = op.sized(1, 1, 1), alignment
        if key not in self._grids:
            if len(self._grids) >= MOST_GRIDS:
                self._grids.clear()
            self._grids[key] = RisingGrid(times)
        return self._grids[key]

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
        elif isinstance(op, Attention) and 1 < op.q_len < op.kv_len:
            # a kernel that cuts its keys into more parts takes less time by its base: never less than for fewer keys
            times = [base.over(op.sized) for base in bases]
            grid = BaseGrid(lambda _, keys: (op.batch, op.q_len, max(keys, op.q_len)), *times)
            seconds, low_s, high_s = grid(1, op.kv_len)
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

    def _rates(self, op: Op) -> tuple[float, float]:
        """FLOP/s and B/s under which it is said to be bound."""
        roof, name = self.roof, op.compute
        return roof.compute[name].value if name in roof.compute else inf, roof.moving(name).value

    def _bound(self, op: Op, cost: Cost, seconds: float) -> str:
        rate, moving = self._rates(op)
        return _longest(cost[0] / rate, (cost[1] + cost[2]) / moving, seconds)

    # -- many operators that differ in tokens or sequences ----------------------------------------------------------
    def along(self, op: Op) -> AlongTokens:
        """For an operator lowered for one token: its answer for any number of tokens."""
        make = grown(op)
        plain = getattr(op, "plain", None)  # a fused kernel that was not measured: as the one it grew from
        if plain is not None and self.points(op) is None:
            return self.along(plain)
        if isinstance(op, (Collective, Composed)):
            return lambda tokens: answer(*self(make(tokens)))
        like, points = op.like_measured(), self.points(op)
        if like is None or points is None:
            return self._base_along(op, make)
        work, answered = _work_along(op), self._answering(op, INTERPOLATED)
        curve: TimeCurve | None = None

        def at(tokens: int) -> Answer:
            nonlocal curve
            if curve is None:
                curve = self._curve(like, points)
            seconds, spread = curve.at(tokens)
            off = exp(Z90 * spread)
            flops, moved = work(tokens)
            return answered(seconds, seconds / off, seconds * off, flops, moved)

        return at

    def _base_along(self, op: Op, make: Callable[[int], Op]) -> AlongTokens:
        """Of an operator without points."""
        value, fast, slow = (base.over(make) for base in self.bases.of(op, ""))
        if isinstance(op, MoeExperts):  # as between their points: stairs of tiles are of even routing, which is none
            value, fast, slow = (StraightCurve(times) for times in (value, fast, slow))
        work, answered = _work_along(op), self._answering(op, self.roof.source)

        def at(tokens: int) -> Answer:
            flops, moved = work(tokens)
            return answered(value(tokens), fast(tokens), slow(tokens), flops, moved)

        return at

    def _answering(self, op: Op, source: str) -> Answering:
        """From seconds, their bounds, FLOPs and bytes to an answer: what limits it, and no less than peaks allow."""
        (rate, moving), compute, peaks = self._rates(op), op.compute, self._peaks
        peak, memory = peaks.compute.get(compute, inf), peaks.bytes_per_s

        def answered(seconds: float, low_s: float, high_s: float, flops: float, moved: float) -> Answer:
            longer_s, bound = flops / rate, "compute"
            if moved > moving * longer_s:
                longer_s, bound = moved / moving, "memory"
            found = seconds, low_s, high_s, "launch" if seconds > 2 * longer_s else bound, source, flops, moved
            if flops <= peak * seconds and moved <= memory * seconds:
                return found
            return at_least(found, peaks.least_s(compute, flops, moved))

        return answered

    def over(self, op: Any) -> OverSequences:
        """For attention and what else depends on sequences: its answer for any of them, from sheets over two sizes."""
        sheets: dict[object, Sheet | BaseGrid | None] = {}
        answered, based = self._answering(op, INTERPOLATED), self._answering(op, self.roof.source)
        # a step reads the weights of all layers before it comes to the same cache again, so that L2 has none of it
        memory = self._peaks.bytes_per_s if self._runs_as is not None else inf

        def at(seq: Seq) -> Answer:
            found = asked(seq)
            return at_least(found, found[6] / memory) if seq.new == 1 else found

        def asked(seq: Seq) -> Answer:
            placed = op.over(seq)
            form = placed.form() if isinstance(placed, (Attention, MaskedAttention)) else None
            if form is None:
                return answer(*self.at_once(placed))
            key = placed.kind, form.name
            if key not in sheets:
                sheets[key] = self._sheet(placed, form)
            sheet = sheets[key]
            if sheet is None:
                return answer(*self.at_once(placed))
            flops, read, written = placed.cost()
            if isinstance(sheet, BaseGrid):
                return based(*sheet(*form.sizes), flops, read + written)
            seconds, spread, base = sheet.at(*form.sizes)
            if form.like:
                seconds *= sheet.base(*form.like) / base
            off = exp(Z90 * spread)
            return answered(seconds, seconds / off, seconds * off, flops, read + written)

        return at

    def _sheet(self, op: Attention | MaskedAttention, form: Form) -> Sheet | BaseGrid | None:
        """Models whose heads are alike share it. None for what is asked for as it is: bases under a mask never fall."""
        key = op.sized(1, 1, 1), form.name
        if key not in self._sheets:
            if len(self._sheets) >= MOST_CURVES:
                self._sheets.clear()
            points = self.points(op)
            if points:
                self._sheets[key] = Sheet(op.sized, form.at, points, form.place, form.name != "chunk")
            elif isinstance(op, MaskedAttention):
                self._sheets[key] = None
            else:
                value, fast, slow = (base.over(op.sized) for base in self.bases.of(op, ""))
                self._sheets[key] = BaseGrid(form.at, value, fast, slow)
        return self._sheets[key]


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


def _least_s(groups: Sequence[PointGroup]) -> float:
    """Of the smallest shape."""
    return min((sum(op.place()), s) for g in groups for op, s in zip(g.ops, g.seconds))[1]


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
