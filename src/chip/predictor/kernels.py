"""What answers for the kernel of an operator that an engine runs: its points, and else a base time.

Points are those of the kernel itself or, where CHIP measured none, published ones. The base time of a kernel that has
none of its own is the first of

1. one fitted to another kernel of its kind on this GPU,
2. one fitted on the reference GPU, scaled by the ratio of the two GPUs' rates,
3. the ceilings of this GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from math import exp, inf
from typing import Any

from chip.hardware.points import PRODUCT, Library, PointGroup
from chip.hardware.tables import short_runs
from chip.hardware.tables.quantised import (
    at_sizes_of,
    experts_at_sizes_of,
    published_format,
    rounding_before,
    without_blocks,
)
from chip.ops import BaseTime
from chip.ops.collectives import Collective
from chip.ops.elementwise import RowBase
from chip.predictor.clock import FREE, PowerLimit, Settling
from chip.predictor.interpolate import Z90, Points
from chip.predictor.peaks import Carried
from chip.predictor.roof import COPY, Range, Roof, check_dtype
from chip.types import Op

BaseTimes = tuple[BaseTime, ...]  # three: expected, fastest, slowest

SIMPLEST = "add"  # its base stands for elementwise kernels that were not measured
ATTENTION = "attention"  # and this one's for other kinds of attention
BORROWED_SPREAD = 0.2  # standard deviation of a base that was fitted to another kernel of its kind
OF_TORCH = ("torch", "flash")  # implementations that torch chooses by default
WITHIN_WARP = ("flash",)  # kernels whose instructions multiply within a warp: FlashAttention-2
EXPERTS = "moe_experts"  # the kind under which others publish experts of any format
SAME_KERNELS = {"fp16": "bf16"}  # as wide and as fast: the same kernel template with another type
# A tiny product in a published format may take so many times as long as one in bf16, since the rounding of its input is
# timed with it. If it takes longer, the table has the host's time in it, except in tables without tiny shapes.
LONGEST_ROUNDING = 4.0
WITHOUT_TINY = ("fp8_block",)
LEAST_PRODUCT = 0.5  # the part of a published time that is left at least when that rounding is taken off
ANY = "*"  # any kernel, where no engine is named


class Bases:
    """The base times of one GPU and the kernels that an engine runs."""

    def __init__(
        self, roof: Roof, library: Library | None, runs_as: Mapping[str, str] | None,
        reference: Bases | None, sibling: Bases | None = None,
    ) -> None:  # fmt: skip
        """`reference`: those of the GPU whose fitted bases stand in where this one has none. `sibling`: of the one
        whose points do."""
        self.roof, self._library = roof, library
        self._runs_as, self._reference, self._has_points = runs_as or {}, reference, bool(library or sibling)
        self.settling = roof.settling if self._has_points else None
        self._known: dict[tuple[type[Op], str, str, str], BaseTimes] = {}

    def of(self, op: Op, kernel: str) -> BaseTimes:
        of_format = op.kernel_of("") if op.BY_FORMAT else ""
        key = (type(op), kernel or op.kind, op.compute, of_format)
        if key not in self._known:
            self._known[key] = self._borrowed(op, kernel) or self._scaled(op, kernel) or self._of_ceilings(op)
        return self._known[key]

    def _fitted(self, op: Op, kernel: str) -> tuple[BaseTime, str, str] | None:
        """A base fitted on this GPU to this kernel or to another of its kind, the compute ceiling it ran under, and the
        kernel. For elementwise operators an addition's will do."""
        if self._library is None:
            return None
        # its kind, then those that it derives from
        related = [c.__dict__["kind"] for c in type(op).__mro__ if "kind" in c.__dict__]
        plain = SIMPLEST if op.WARM else ATTENTION if op.OF_SEQUENCES else PRODUCT if op.counted_flops else ""
        for kind in (*related, plain):
            bases = self._library.bases(kind, getattr(op, "dtype", "bf16"))
            if not bases:
                continue
            runs = self._runs_as.get(kind, "").partition(" ")[0].split("|")
            names = [op.kernel_of(run) for run in runs] if op.BY_FORMAT else runs
            if op.WARM and kind != SIMPLEST and runs != [""] and not any(b[0].partition(".")[0] in runs for b in bases):
                continue  # a kernel of the engine's own, where torch runs several
            form = (type(op).ON_CPU if self.roof.is_cpu else type(op).base_class(kernel or runs[0])) or BaseTime
            like, base, compute = min(
                bases,
                key=lambda b: (b[0] != kernel, b[0] not in names, not isinstance(b[1], form), b[0] not in OF_TORCH),
            )
            if op.BY_FORMAT and kind != PRODUCT and names[0] != like:
                continue  # a plain product is nearer than a kernel of another format
            kernels = op.KERNELS if kind == plain != op.kind else 1
            base = _in_form(base, form, [b for _, b, _ in bases], kind not in related)
            return replace(base, floor_s=base.floor_s * kernels), compute, like
        return None

    def _borrowed(self, op: Op, kernel: str) -> BaseTimes | None:
        fitted = self._fitted(op, kernel)
        if fitted is None:
            return None
        base, compute, _ = fitted
        scale = self._rate(op.compute).value / self._rate(compute).value
        base, off = replace(base, flop_per_s=base.flop_per_s * scale), exp(Z90 * BORROWED_SPREAD)
        return base, _times(base, 1 / off), _times(base, off)

    def _scaled(self, op: Op, kernel: str) -> BaseTimes | None:
        """The reference GPU's base at this GPU's rates and at their bounds."""
        like = self._reference
        fitted = like._fitted(op, kernel) if like else None
        if like is None or fitted is None or op.compute not in like.roof.compute:
            return None
        base, compute, of_kernel = fitted
        flops, moving = self._rate(op.compute), self.roof.moving(op)
        by_flops = flops.value / like._rate(compute).value
        if of_kernel in WITHIN_WARP:
            by_flops *= self.roof.within_warp / like.roof.within_warp
        by_bytes = moving.value / like.roof.moving(op).value
        # The base was fitted between boost and settled clocks. Other GPUs are taken as settled.
        settled = like.settling.measured if like.settling else 1.0
        limits = [f.name for f in fields(base) if f.name.endswith("bytes_per_s")]

        def at_rates(flop_per_s: float, bytes_per_s: float) -> BaseTime:
            numbers = {name: getattr(base, name) * by_bytes * bytes_per_s / moving.value for name in limits}
            if isinstance(base, RowBase):  # beyond the cache it is no faster than a copy
                streamed = self.roof.ceilings[COPY].value * bytes_per_s / moving.value
                numbers["late"] = max(base.late, numbers["bytes_per_s"] / streamed - 1)
            rate = base.flop_per_s * by_flops * settled * flop_per_s / flops.value
            return replace(base, flop_per_s=rate, sm_count=self.roof.sm_count, **numbers)

        return tuple(map(at_rates, _cases(flops), _cases(moving)))

    def _of_ceilings(self, op: Op) -> BaseTimes:
        roof, flops = self.roof, self._rate(op.compute)
        cases = zip(roof.launch_s, _cases(flops), _cases(roof.moving(op)))
        return tuple(BaseTime(op.KERNELS * s, f, b, roof.sm_count) for s, f, b in cases)

    def _rate(self, name: str) -> Range:
        check_dtype(self.roof, name)
        return self.roof.compute[name]


class KernelPoints:
    """The points of one GPU, as an engine needs them. `runs_as`: for each kind of operator the kernel that the engine
    runs and, where it is not the warmest that was measured, the context ("compiled cold"). None: as torch runs each
    operator, cold. `sibling`: those of another GPU of the same chip, for one that has none, and how they are carried to
    it."""

    def __init__(
        self, library: Library | None, runs_as: Mapping[str, str] | None, bases: Bases,
        sibling: tuple[KernelPoints, Carried] | None = None,
    ) -> None:  # fmt: skip
        self._library, self._runs_as, self._bases, self._sibling = library, runs_as, bases, sibling
        self._points: dict[tuple[str, str, str, str, int], Points | None] = {}

    def measured_in(self, dtype: str) -> str:
        """The dtype of the points that answer for this one; "" where there are none."""
        if self._sibling is not None:
            return self._sibling[0].measured_in(dtype)
        if self._library is None:
            return ""
        return next((d for d in (dtype, SAME_KERNELS.get(dtype, "")) if self._library.has(PRODUCT, d)), "")

    def of(self, op: Op) -> Points | None:
        """The points of the kernel that runs this operator; None where it was not measured."""
        if (self._library or self._sibling) is None or not op.place():
            return None
        dtype = getattr(op, "dtype", "")
        wanted = ANY if self._runs_as is None else self._runs_as.get(op.kind, "")
        stored = getattr(op, "weight_dtype", ""), getattr(op, "group", 0)
        key = (op.kind, dtype, op.kernel_of("torch"), *stored)
        if key not in self._points:
            self._points[key] = self._sibling[0].of(op) if self._sibling else self._find(op, wanted, dtype)
        return self._points[key]

    def has(self, op: Op) -> bool:
        return self.of(op) is not None

    def carried(self, op: Op) -> Carried | None:
        """How the points of the sibling, if they answer, become times of this GPU."""
        return replace(self._sibling[1], limit=self._sibling[0].limit(op)) if self._sibling else None

    def _find(self, op: Op, wanted: str, dtype: str) -> Points | None:
        assert self._library is not None
        names, _, context = wanted.partition(" ")
        kernels = tuple(op.kernel_of(name) for name in names.split("|")) if wanted != ANY else ()
        known = self._library.groups(op.kind, dtype, kernels, context)
        if not known and dtype in SAME_KERNELS:
            known = self._library.groups(op.kind, SAME_KERNELS[dtype], kernels, context)
        if wanted == ANY:
            fitting = [g for g in known if g.kernel == op.kernel_of(g.implementation)]
            fitting.sort(key=lambda g: (g.context != "cold", g.implementation not in OF_TORCH, -len(g.ops)))
        else:
            warm = "hot" if op.WARM else "cold"
            fitting = sorted(known, key=lambda g: (g.base is None, kernels.index(g.kernel), g.context != warm))
        if not fitting:
            return self._published(op, form) if wanted and (form := published_format(op)) else None
        group, shared = fitting[0], self._library.shared
        if group.base is None:
            return Points(self._settled(group, op), self._bases.of(op, group.kernel)[0])
        if id(group) not in shared:
            shared[id(group)] = group, Points(group, group.base)
        points: Points = shared[id(group)][1]
        return points

    def _published(self, op: Any, form: str) -> Points | None:
        """From others' tables, which have quantised products as a format of plain ones, timed with the rounding of
        their input."""
        assert self._library is not None
        if op.ROUTED:
            return self._published_experts(op, form)
        known, plain = (self._library.groups(PRODUCT, f) for f in (form, "bf16"))
        if not known or not plain:
            return None
        if form not in WITHOUT_TINY and _smallest_s(known) > LONGEST_ROUNDING * _smallest_s(plain):
            return None
        table = min(known, key=lambda g: (g.context != "cold", -len(g.ops)))
        products, before = tuple(at_sizes_of(op, o) for o in table.ops), self._bases.of(rounding_before(op), "")[0]
        rounded_s = (before.seconds(rounding_before(each)) for each in products)
        seconds = tuple(max(s - r, LEAST_PRODUCT * s) for s, r in zip(table.seconds, rounded_s))
        group = replace(table, kind=op.kind, dtype=op.dtype, ops=products, seconds=seconds)
        return Points(self._settled(group, op), self._bases.of(without_blocks(op), "")[0])

    def _settled(self, group: PointGroup, op: Op) -> PointGroup:
        """Published points, which are of short runs, at the clock that the GPU settles at."""
        settling, power = self._bases.settling, self.limit(op).power
        if settling is None or not group.imported:
            return group
        runs, least = short_runs.calls(group.kind), FREE * settling.flop_per_s / power
        loads = ((each.cost().flops, seconds) for each, seconds in zip(group.ops, group.seconds))
        return replace(group, seconds=tuple([
            settling.from_rest(seconds, power * flops, runs) if flops > least * seconds else seconds
            for flops, seconds in loads
        ]))  # fmt: skip

    def _published_experts(self, op: Any, form: str) -> Points | None:
        assert self._library is not None
        known = self._library.groups(EXPERTS, form)
        if not known:
            return None
        table = min(known, key=lambda g: (g.context != "cold", -len(g.ops)))
        ops = tuple(experts_at_sizes_of(op, o) for o in table.ops)
        group = replace(table, kind=op.kind, dtype=op.dtype, ops=ops)
        return Points(self._settled(group, op), self._bases.of(op, "")[0])

    def limit(self, op: Op) -> PowerLimit:
        """How the power limit sets the time of the operator on this GPU. Formats with a higher rate draw less power for
        a FLOP than bf16, fp16 draws more: its points, timed beside others, were above the clock it settles at."""
        if self._sibling is not None:
            return PowerLimit(self._bases.settling, self._sibling[0].limit(op).power)
        settling, dtype = self._bases.settling, getattr(op, "dtype", "")
        if settling is None or isinstance(op, Collective):
            return PowerLimit(settling)
        clock = self._library.clock(op.kind, dtype) if self._library else ""
        if clock:
            timed = Settling.read(clock, settling)
            return PowerLimit(settling, settling.flop_per_s / timed.flop_per_s, settling.measured / timed.measured - 1)
        plain, rate = (self._bases.roof.compute.get(name) for name in ("matmul_bf16", op.compute))
        power = plain.value / rate.value if plain and rate else 1.0
        if dtype in SAME_KERNELS:
            return PowerLimit(settling, power, max(0.0, power - 1))
        return PowerLimit(settling, min(1.0, power))


def _cases(rate: Range) -> tuple[float, float, float]:
    """In the order of `BaseTimes`."""
    return rate.value, rate.high, rate.low


def _in_form(base: BaseTime, form: type[BaseTime], known: Sequence[BaseTime], stand_in: bool) -> BaseTime:
    """The base of a kernel that cuts its work in this form. Of a variant of it all numbers are taken over; of another
    kernel its floor and rates, and the least at which any takes in what it reads. `stand_in`: for an operator of
    another kind."""
    numbers = [getattr(base, f.name) for f in fields(base)]
    if issubclass(form, type(base)) and len(fields(form)) == len(numbers):
        return form(*numbers)
    if not (stand_in or isinstance(base, form)):
        return base
    kernels = getattr(form, "KERNELS", 1) / getattr(base, "KERNELS", 1)
    stream = min(getattr(b, "stream_bytes_per_s", inf) for b in known)
    streams = stream < inf and any(f.name == "stream_bytes_per_s" for f in fields(form))
    beside = {"stream_bytes_per_s": stream} if streams else {}
    return form(base.floor_s * kernels, base.flop_per_s, base.bytes_per_s, base.sm_count, **beside)


def _times(base: BaseTime, factor: float) -> BaseTime:
    """A base that takes `factor` times as long."""
    numbers = {f.name: getattr(base, f.name) for f in fields(base) if f.name.endswith("_s")}
    return replace(base, **{n: v / factor if n.endswith("per_s") else v * factor for n, v in numbers.items()})


def _smallest_s(groups: Sequence[PointGroup]) -> float:
    """The time of the smallest shape."""
    return min((sum(op.place()), s) for g in groups for op, s in zip(g.ops, g.seconds))[1]
