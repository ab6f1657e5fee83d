"""Seconds of an operator on a GPU: from measured points where its kernel has them, from its base time where not.

An answer is a plain tuple (seconds, low, high, bound, source, FLOPs, bytes): a sweep asks for hundreds of thousands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from math import exp
from pathlib import Path
from typing import Any

from chip import points as point_files
from chip.hardware import Hardware
from chip.ops.all_reduce import AllReduce
from chip.ops.attention import Attention
from chip.ops.base_time import BaseTime
from chip.ops.composed import Composed
from chip.ops.elementwise import OverRows
from chip.ops.masked_attention import MaskedAttention
from chip.points import Group, PointFile
from chip.predict.clock import Settling
from chip.predict.interpolate import PRODUCT_NODES, Z90, Curve, Points, Sheet, Timed
from chip.predict.roof import Range, Roof, check_dtype, roof_of
from chip.predict.stages import ALL, Stage
from chip.types import ChipError, Cost, Estimate, Op, Seq

Answer = tuple[float, float, float, str, str, float, float]
AlongTokens = Callable[[int], Answer]
OverSequences = Callable[[Seq], Answer]

INTERPOLATED = "interpolated"  # the source of what points answer
SAME_KERNELS = {"fp16": "bf16"}  # as wide and as fast: one template of a kernel, the other type
PRODUCT = "linear"  # the operator that every folder of points has
SIMPLEST = "add"  # the elementwise kernel whose base stands for those that were not measured
BORROWED_SPREAD = 0.2  # standard deviation of a base that another kernel of its kind was fitted to
OF_TORCH = ("torch", "flash")  # implementations that torch chooses itself
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


class Estimator:
    """Answers for one GPU. `runs_as` says which kernel an engine runs of each operator, and in which context where that
    is not the warmest measured ("compiled cold"); without it each operator is taken as torch runs it, cold."""

    def __init__(
        self, roof: Roof, stage: Stage, library: Library | None, runs_as: Mapping[str, str] | None = None
    ) -> None:
        self.roof, self.stage = roof, stage
        self.settling = library.settling if library else None
        self._library, self._runs_as = library, runs_as
        self._points: dict[tuple[str, str, str], Points | None] = {}
        self._bases: dict[tuple[type[Op], str, str], tuple[BaseTime, BaseTime, BaseTime]] = {}

    # -- which points ---------------------------------------------------------------------------------------------
    def measured_in(self, dtype: str) -> str:
        """The dtype of the points that answer for this one; nothing where there are none."""
        known = {g.dtype for g in self._library.groups(PRODUCT)} if self._library else set()
        return dtype if dtype in known else like if (like := SAME_KERNELS.get(dtype, "")) in known else ""

    def points(self, op: Op) -> Points | None:
        """Those of the kernel that runs this operator."""
        dtype = getattr(op, "dtype", "")
        wanted = ANY if self._runs_as is None else self._runs_as.get(op.kind, "")
        name, _, context = wanted.partition(" ")
        kernel = op.kernel_of(name) if name != ANY else ANY
        key = (op.kind, dtype, f"{kernel} {context} {op.kernel_of('torch') if name == ANY else ''}")
        if key not in self._points:
            self._points[key] = self._made(op, kernel, context, dtype)
        return self._points[key]

    def _made(self, op: Op, kernel: str, context: str, dtype: str) -> Points | None:
        every = self._library.groups(op.kind) if self._library else ()
        known = [g for g in every if g.dtype == dtype] or [g for g in every if g.dtype == SAME_KERNELS.get(dtype)]
        if kernel == ANY:
            fitting = [g for g in known if g.context == "cold" and g.kernel == op.kernel_of(g.kernel.split(".")[0])]
            fitting.sort(key=lambda g: (g.kernel.split(".")[0] not in OF_TORCH, -len(g.ops)))
        else:
            fitting = [g for g in known if g.kernel == kernel and context in ("", g.context)]
            fitting.sort(key=lambda g: g.context != "hot")
        if not fitting:
            return None
        found = fitting[0]
        return Points(found, found.base or self._base(op, found.kernel)[0])

    # -- one operator ---------------------------------------------------------------------------------------------
    def __call__(self, op: Op) -> tuple[Estimate, Cost]:
        cost = op.cost()
        if isinstance(op, AllReduce):
            return self._over_link(op), cost
        like, points = op.like_measured(), self.points(op)
        if like is not None and points is not None:
            return self._interpolated(points.seconds(like), op, cost), cost
        if isinstance(op, Composed):
            return self._summed(op), cost
        if points is not None and isinstance(op, Attention) and op.window:
            return self._windowed(points, op, cost), cost
        return self._from_base(op, cost), cost

    def _interpolated(self, found: Timed, op: Op, cost: Cost) -> Estimate:
        seconds, spread = found
        off = exp(Z90 * spread)
        return Estimate(seconds, seconds / off, seconds * off, INTERPOLATED, self._bound(op, cost, seconds))

    def _windowed(self, points: Points, op: Attention, cost: Cost) -> Estimate:
        """A prompt longer than its window: as attention to all of it, less what the window hides."""
        whole = replace(op, window=0)
        seconds, spread = points.seconds(whole)
        share = cost[0] / whole.cost()[0]
        return self._interpolated(Timed(seconds * share, spread + BORROWED_SPREAD / 2), op, cost)

    def _summed(self, op: Composed) -> Estimate:
        """An operator of several kernels as the sum of its parts. Source and bound are those of the longest part."""
        found = [self(part)[0] for part in op.parts()]
        seconds, low_s, high_s = (sum(part) for part in zip(*[(e.seconds, e.low_s, e.high_s) for e in found]))
        longest = max(found, key=lambda e: e.seconds)
        return Estimate(seconds, low_s, high_s, longest.source, longest.bound)

    def _from_base(self, op: Op, cost: Cost) -> Estimate:
        value, fast, slow = self._base(op, "")
        seconds = value.seconds(op)
        return Estimate(
            seconds, fast.seconds(op), slow.seconds(op), self.roof.source, self._bound(op, cost, seconds)
        )  # fmt: skip

    def _base(self, op: Op, kernel: str) -> tuple[BaseTime, BaseTime, BaseTime]:
        """Of an operator without points of its own: as expected, at the best and at the worst."""
        key = (type(op), kernel or op.kind, op.compute)
        found = self._bases.get(key)
        if found is None:
            found = self._bases[key] = self._borrowed(op) or self._of_ceilings(op, kernel)
        return found

    def _borrowed(self, op: Op) -> tuple[BaseTime, BaseTime, BaseTime] | None:
        """The base of another kernel of its kind, at this operator's rate; of elementwise kernels, an addition's."""
        if self._library is None:
            return None
        kind = op.kind if self._library.groups(op.kind) or not isinstance(op, OverRows) else SIMPLEST
        groups = [g for g in self._library.groups(kind) if g.base is not None]
        if not groups:
            return None
        best = min(groups, key=lambda g: (g.context != "hot", g.kernel.split(".")[0] not in OF_TORCH))
        assert best.base is not None
        scale = self._rate(op.compute).value / self._rate(best.ops[0].compute).value
        floor_s = best.base.floor_s * (op.KERNELS if kind == SIMPLEST else 1)
        base = replace(best.base, flop_per_s=best.base.flop_per_s * scale, floor_s=floor_s)
        off = exp(Z90 * BORROWED_SPREAD)
        return base, _times(base, 1 / off), _times(base, off)

    def _of_ceilings(self, op: Op, kernel: str) -> tuple[BaseTime, BaseTime, BaseTime]:
        roof = self.roof
        cls = type(op).base_class(kernel) if self.stage >= Stage.FACTORS else BaseTime
        rate, launch = self._rate(op.compute), roof.launch_s
        moving = roof.stream if op.compute == "matmul_fp32" else roof.weights
        made = [
            cls(op.KERNELS * s, r, b, sm_count=roof.sm_count)
            for s, r, b in zip(launch, (rate.value, rate.high, rate.low), (moving.value, moving.high, moving.low))
        ]
        return made[0], made[1], made[2]

    def _rate(self, name: str) -> Range:
        check_dtype(self.roof, name)
        return self.roof.compute[name]

    def _over_link(self, op: AllReduce) -> Estimate:
        link = self.roof.link
        if link is None:
            raise ChipError(f"--tp above 1 cannot be predicted on {self.roof.name}: {self.roof.ranks_need}")
        latency = link.latency_s.value * op.hops if link.latency_s else 0.0
        ideal = op.bytes_over_link / link.bytes_per_s.value
        seconds = self.roof.launch_s.value + latency + ideal
        # a link's promise is kept to an unmeasured part: from all of it to half of it
        return Estimate(seconds, seconds, self.roof.launch_s.high + 2 * (latency + ideal), "datasheet", "link")

    def _rates(self, op: Op) -> tuple[float, float]:
        """FLOP/s and B/s under which it is said to be bound."""
        roof, name = self.roof, op.compute
        moving = roof.stream if name == "matmul_fp32" else roof.weights
        return roof.compute[name].value if name in roof.compute else float("inf"), moving.value

    def _bound(self, op: Op, cost: Cost, seconds: float) -> str:
        rate, moving = self._rates(op)
        return _longest(cost[0] / rate, (cost[1] + cost[2]) / moving, seconds)

    # -- many operators that differ in tokens or sequences ----------------------------------------------------------
    def along(self, op: Op) -> AlongTokens:
        """For an operator lowered for one token: its answer for any number of tokens."""
        make = grown(op)
        if isinstance(op, (AllReduce, Composed)):
            return lambda tokens: answer(*self(make(tokens)))
        like, points = op.like_measured(), self.points(op)
        if like is None or points is None:
            return self._base_along(op, make)
        product, grow = op.kind == PRODUCT, grown(like)
        work = self._work_along(op, make)
        curve: list[Curve] = []

        def at(tokens: int) -> Answer:
            if not curve:
                curve.append(Curve(grow, points, PRODUCT_NODES) if product else Curve(grow, points, straight=True))
            seconds, spread = curve[0](tokens)
            flops, moved, arithmetic_s, memory_s = work(tokens)
            off = exp(Z90 * spread)
            bound = _longest(arithmetic_s, memory_s, seconds)
            return seconds, seconds / off, seconds * off, bound, INTERPOLATED, flops, moved

        return at

    def _base_along(self, op: Op, make: Callable[[int], Op]) -> AlongTokens:
        """Of an operator without points."""
        value, fast, slow = (base.seconds for base in self._base(op, ""))
        source, work = self.roof.source, self._work_along(op, make)

        def at(tokens: int) -> Answer:
            more = make(tokens)
            seconds = value(more)
            flops, moved, arithmetic_s, memory_s = work(tokens)
            return seconds, fast(more), slow(more), _longest(arithmetic_s, memory_s, seconds), source, flops, moved

        return at

    def _work_along(self, op: Op, make: Callable[[int], Op]) -> Callable[[int], tuple[float, float, float, float]]:
        """FLOPs and bytes for any number of tokens, and the seconds that either takes at its ceiling."""
        rate, moving = self._rates(op)
        (f1, b1), (f2, b2), (f4, b4) = ((c[0], c[1] + c[2]) for c in (make(n).cost() for n in (1, 2, 4)))
        if (f4 - f2, b4 - b2) != (2 * (f2 - f1), 2 * (b2 - b1)):

            def work(tokens: int) -> tuple[float, float, float, float]:
                flops, read, written = make(tokens).cost()
                return flops, read + written, flops / rate, (read + written) / moving

            return work
        per_token, per_byte, flops_0, bytes_0 = f2 - f1, b2 - b1, 2 * f1 - f2, 2 * b1 - b2

        def straight(tokens: int) -> tuple[float, float, float, float]:
            flops, moved = flops_0 + per_token * tokens, bytes_0 + per_byte * tokens
            return flops, moved, flops / rate, moved / moving

        return straight

    def over(self, op: Any) -> OverSequences:
        """For attention and what else depends on sequences: its answer for any of them, from sheets over two sizes."""
        sheets: dict[tuple[object, ...], tuple[Sheet, Callable[[Op], float]] | None] = {}

        def at(seq: Seq) -> Answer:
            placed = op.over(seq)
            found = placed.sheet() if isinstance(placed, (Attention, MaskedAttention)) else None
            if found is None:
                return answer(*self(placed))
            key, make, sizes, place = found
            if key not in sheets:
                points = self.points(placed)
                sheets[key] = (Sheet(make, points, place), points.base.seconds) if points else None
            held = sheets[key]
            if held is None:
                return answer(*self(placed))
            sheet, base = held
            seconds, spread = sheet(*sizes)
            like, node = placed.like_measured(), make(*sizes)
            if node != like and like is not None:
                seconds *= base(like) / base(node)
            cost = placed.cost()
            return answer(self._interpolated(Timed(seconds, spread), placed, cost), cost)

        return at


def _longest(arithmetic_s: float, memory_s: float, seconds: float) -> str:
    """What bounds an operator: arithmetic, memory, or everything that is neither."""
    longer = arithmetic_s if arithmetic_s > memory_s else memory_s
    if seconds > 2 * longer:
        return "launch"
    return "compute" if arithmetic_s == longer else "memory"


def _times(base: BaseTime, factor: float) -> BaseTime:
    """A base that takes so many times as long."""
    timed = {f.name: getattr(base, f.name) for f in dataclasses.fields(base)}
    for name, value in timed.items():
        if name.endswith("per_s"):
            timed[name] = value / factor
        elif name.endswith("_s"):
            timed[name] = value * factor
    return type(base)(**timed)


class Library:
    """A folder of points, each kind of operator read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kinds = frozenset(point_files.kinds(folder))
        about = self._read(PRODUCT).about if PRODUCT in self._kinds else {}
        self.device = about.get("device", "")
        self.settling = Settling.read(about["clock"]) if "clock" in about else None

    def _read(self, kind: str) -> PointFile:
        return point_files.read(self.folder / f"{kind}{point_files.SUFFIX}")

    def groups(self, kind: str) -> tuple[Group, ...]:
        return self._read(kind).groups if kind in self._kinds else ()


@lru_cache(maxsize=16)
def library(folder: Path) -> Library:
    return Library(folder)


def estimator_of(h: Hardware, runs_as: Mapping[str, str] | None = None, stage: Stage = ALL) -> Estimator:
    """`runs_as`: which kernel an engine runs of each operator. `stage`: what it may rest on."""
    if h.points is None or stage < Stage.POINTS:
        return Estimator(roof_of(h, stage), stage, None, runs_as)
    found = library(h.points)
    if h.profile is not None and found.device and found.device != h.profile.device:
        raise ChipError(f"{h.points}: holds points of {found.device}, the profile is of {h.profile.device}")
    return Estimator(roof_of(h), stage, found, runs_as)
