"""Which measured points answer for an operator: those of the kernel that the engine runs, else published ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chip.ops.collective import Collective
from chip.points import PointGroup
from chip.predict.bases import OF_TORCH, Bases
from chip.predict.carried import Carried
from chip.predict.clock import FREE
from chip.predict.interpolate import Points, TimeCurve
from chip.predict.library import PRODUCT, Library
from chip.records import fields, replace
from chip.types import Op

SAME_KERNELS = {"fp16": "bf16"}  # as wide and as fast: the same kernel template with another type
# A tiny product in a published format may take so many times as long as one in bf16, since the rounding of its input is
# timed with it. If it takes longer, the table has the host's time in it, except in tables without tiny shapes.
LONGEST_ROUNDING = 4.0
WITHOUT_TINY = ("fp8_block",)
LEAST_PRODUCT = 0.5  # the part of a published time that is left at least when that rounding is taken off
MOST_CURVES = 256  # remembered, so that a sweep of any length runs in bounded memory
ANY = "*"  # any kernel, where no engine is named


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
        self._points: dict[tuple[str, str, str, tuple[str, str]], Points | None] = {}

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
        key = (op.kind, dtype, op.kernel_of("torch"), op.published())
        if key not in self._points:
            self._points[key] = self._carried(op) if self._sibling else self._find(op, wanted, dtype)
        return self._points[key]

    def _carried(self, op: Op) -> Points | None:
        assert self._sibling is not None
        like, carried = self._sibling
        found = like.of(op)
        return found and found.carried_by(carried)

    def has(self, op: Op) -> bool:
        return self.of(op) is not None

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
            return self._published(op) if wanted else None
        found = fitting[0]
        return self._library.points(found) if found.base else Points(found, self._bases.of(op, found.kernel)[0])

    def _published(self, op: Op) -> Points | None:
        """From others' tables, which have quantised products as a format of plain ones, timed with the rounding of
        their input."""
        assert self._library is not None
        kind, form = op.published()
        known, plain = (self._library.groups(kind, f) if kind else () for f in (form, "bf16"))
        if not known or not plain:
            return None
        if form not in WITHOUT_TINY and _smallest_s(known) > LONGEST_ROUNDING * _smallest_s(plain):
            return None
        found = min(known, key=lambda g: (g.context != "cold", -len(g.ops)))
        made, seconds = tuple(op.from_published(o) for o in found.ops), found.seconds
        if (rounding := op.rounded_before()) is not None:
            before = self._bases.of(rounding, "")[0]
            rounded = [before.seconds(each) for o in made if (each := o.rounded_before()) is not None]
            seconds = tuple(max(s - r, LEAST_PRODUCT * s) for s, r in zip(seconds, rounded))
        group = replace(found, kind=op.kind, dtype=getattr(op, "dtype", ""), ops=made, seconds=seconds)
        return Points(group, self._bases.of(op.base_of_published(), "")[0])

    def curve(self, one: Op, points: Points) -> TimeCurve:
        found = points.curves.get(one)
        if found is None:
            if len(points.curves) >= MOST_CURVES:
                points.curves.clear()
            held_s = self.held_s(one)
            found = points.curves[one] = TimeCurve(
                grown(one), points, self._clocked(one), lambda op, seconds: held_s(op.cost().flops, seconds)
            )
        return found

    def _clocked(self, op: Op) -> Callable[[Op, float], float]:
        """Converts seconds of points that were timed at another clock to the clock of all others, and those of another
        format whose FLOPs draw less: at the power limit they take that much longer."""
        if self._sibling is not None:
            return self._sibling[0]._clocked(op)
        dtype, settling = getattr(op, "dtype", ""), self._bases.settling
        own = self._library.clock(op.kind, dtype) if self._library else None
        if settling is None:
            return lambda op, seconds: seconds
        if own is not None:
            settling, shift = own, settling.measured / own.measured - 1
        else:
            shift = max(0.0, self._power(op) - 1) if dtype in SAME_KERNELS else 0.0
        if not shift:
            return lambda op, seconds: seconds
        return lambda op, seconds: seconds * (1 + shift * settling.limited(op.cost()[0] / seconds))

    def held_s(self, op: Op) -> Callable[[float, float], float]:
        """From FLOPs and seconds to the part of the seconds that the power limit holds."""
        settling, power = self._bases.settling, self._power(op)
        if settling is None:
            return lambda flops, seconds: 0.0
        free = FREE * settling.flop_per_s / power  # FLOP/s up to which arithmetic keeps its clock
        return lambda flops, seconds: (
            seconds * settling.limited(power * flops / seconds) if flops > free * seconds else 0.0
        )

    def _power(self, op: Op) -> float:
        """The power of a FLOP, relative to one in bf16: formats with a higher rate take less for each, fp16 more."""
        settling = self._bases.settling
        if settling is None or isinstance(op, Collective):
            return 1.0
        if self._sibling is not None:
            return self._sibling[0]._power(op)
        own = self._library.clock(op.kind, getattr(op, "dtype", "")) if self._library else None
        if own:
            return settling.flop_per_s / own.flop_per_s
        plain, rate = (self._bases.roof.compute.get(name) for name in ("matmul_bf16", op.compute))
        relative = plain.value / rate.value if plain and rate else 1.0
        return relative if getattr(op, "dtype", "") in SAME_KERNELS else min(1.0, relative)


def _smallest_s(groups: Sequence[PointGroup]) -> float:
    """The time of the smallest shape."""
    return min((sum(op.place()), s) for g in groups for op, s in zip(g.ops, g.seconds))[1]
