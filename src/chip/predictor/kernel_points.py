"""Which measured points answer for an operator: those of the kernel that the engine runs, else published ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from chip.hardware.points import PRODUCT, Library, PointGroup
from chip.hardware.tables import short_runs
from chip.hardware.tables.quantised import at_sizes_of, published_format, rounding_before, without_blocks
from chip.ops.collectives import Collective
from chip.predictor.bases import OF_TORCH, Bases
from chip.predictor.clock import FREE, PowerLimit, Settling
from chip.predictor.interpolate import Points
from chip.predictor.peaks import Carried
from chip.types import Op

SAME_KERNELS = {"fp16": "bf16"}  # as wide and as fast: the same kernel template with another type
# A tiny product in a published format may take so many times as long as one in bf16, since the rounding of its input is
# timed with it. If it takes longer, the table has the host's time in it, except in tables without tiny shapes.
LONGEST_ROUNDING = 4.0
WITHOUT_TINY = ("fp8_block",)
LEAST_PRODUCT = 0.5  # the part of a published time that is left at least when that rounding is taken off
ANY = "*"  # any kernel, where no engine is named


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
        self._points: dict[tuple[str, str, str, str], Points | None] = {}

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
        key = (op.kind, dtype, op.kernel_of("torch"), published_format(op))
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


def _smallest_s(groups: Sequence[PointGroup]) -> float:
    """The time of the smallest shape."""
    return min((sum(op.place()), s) for g in groups for op, s in zip(g.ops, g.seconds))[1]
