"""The base time of an operator whose kernel has none of its own: the first of

1. one fitted to another kernel of its kind on this GPU,
2. one fitted on the reference GPU, scaled by the ratio of the two GPUs' rates,
3. the ceilings of this GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from math import exp, inf

from chip.hardware.points import PRODUCT, Library
from chip.ops.base_time import BaseTime
from chip.ops.elementwise import RowBase
from chip.predictor.clock import Settling
from chip.predictor.interpolate import Z90
from chip.predictor.roof import Range, Roof, check_dtype
from chip.types import Op

BaseTimes = tuple[BaseTime, ...]  # three: expected, fastest, slowest

SIMPLEST = "add"  # its base stands for elementwise kernels that were not measured
ATTENTION = "attention"  # and this one's for other kinds of attention
BORROWED_SPREAD = 0.2  # standard deviation of a base that was fitted to another kernel of its kind
OF_TORCH = ("torch", "flash")  # implementations that torch chooses by default


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
        self.settling: Settling | None = None
        if library and "settling" in library.about:
            self.settling = Settling.read(library.about["settling"])
        if sibling and sibling.settling:
            scale = self._rate("matmul_bf16").value / sibling._rate("matmul_bf16").value
            self.settling = replace(sibling.settling, flop_per_s=sibling.settling.flop_per_s * scale)
        elif library and self.settling is None and reference and reference.settling:
            rate = self._rate("matmul_bf16" if "matmul_bf16" in roof.compute else "matmul_fp16")
            self.settling = reference.settling.from_boost(rate.value / reference._rate("matmul_bf16").value)
        self._known: dict[tuple[type[Op], str, str, str], BaseTimes] = {}

    def of(self, op: Op, kernel: str) -> BaseTimes:
        of_format = op.kernel_of("") if op.BY_FORMAT else ""
        key = (type(op), kernel or op.kind, op.compute, of_format)
        if key not in self._known:
            self._known[key] = self._borrowed(op, kernel) or self._scaled(op, kernel) or self._of_ceilings(op)
        return self._known[key]

    def _fitted(self, op: Op, kernel: str) -> tuple[BaseTime, str] | None:
        """A base fitted on this GPU to this kernel or to another of its kind, and the compute ceiling it ran under. For
        elementwise operators an addition's will do."""
        if self._library is None:
            return None
        # its kind, then those that it derives from
        related = [c.__dict__["kind"] for c in type(op).__mro__ if "kind" in c.__dict__]
        plain = SIMPLEST if op.WARM else ATTENTION if op.OF_SEQUENCES else PRODUCT if op.counted_flops else ""
        for kind in (*related, plain):
            bases = self._library.bases(kind)
            if not bases:
                continue
            runs = self._runs_as.get(kind, "").partition(" ")[0].split("|")
            names = [op.kernel_of(run) for run in runs] if op.BY_FORMAT else runs
            if op.WARM and kind != SIMPLEST and runs != [""] and not any(b[0].partition(".")[0] in runs for b in bases):
                continue  # a kernel of the engine's own, where torch runs several
            form = type(op).base_class(kernel or runs[0]) or BaseTime
            like, base, compute = min(
                bases,
                key=lambda b: (b[0] != kernel, b[0] not in names, not isinstance(b[1], form), b[0] not in OF_TORCH),
            )
            if op.BY_FORMAT and kind != PRODUCT and names[0] != like:
                continue  # a plain product is nearer than a kernel of another format
            kernels = op.KERNELS if kind == plain != op.kind else 1
            base = _in_form(base, form, [b for _, b, _ in bases], kind not in related)
            return replace(base, floor_s=base.floor_s * kernels), compute
        return None

    def _borrowed(self, op: Op, kernel: str) -> BaseTimes | None:
        fitted = self._fitted(op, kernel)
        if fitted is None:
            return None
        base, compute = fitted
        scale = self._rate(op.compute).value / self._rate(compute).value
        base, off = replace(base, flop_per_s=base.flop_per_s * scale), exp(Z90 * BORROWED_SPREAD)
        return base, _times(base, 1 / off), _times(base, off)

    def _scaled(self, op: Op, kernel: str) -> BaseTimes | None:
        """The reference GPU's base at this GPU's rates and at their bounds."""
        like = self._reference
        fitted = like._fitted(op, kernel) if like else None
        if like is None or fitted is None or op.compute not in like.roof.compute:
            return None
        base, compute = fitted
        flops, moving = self._rate(op.compute), self.roof.moving(op)
        by_flops = flops.value / like._rate(compute).value
        by_bytes = moving.value / like.roof.moving(op).value
        # The base was fitted between boost and settled clocks. A GPU without points of its own is taken as settled.
        settled = like.settling.measured if like.settling and not self._has_points else 1.0
        limits = [f.name for f in fields(base) if f.name.endswith("bytes_per_s")]

        def at_rates(flop_per_s: float, bytes_per_s: float) -> BaseTime:
            numbers = {name: getattr(base, name) * by_bytes * bytes_per_s / moving.value for name in limits}
            if isinstance(base, RowBase):  # beyond the cache it is no faster than a copy
                streamed = self.roof.stream.value * bytes_per_s / moving.value
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
    if not stand_in and not isinstance(base, form):
        return base
    kernels = getattr(form, "KERNELS", 1) / getattr(base, "KERNELS", 1)
    rates = {"stream_bytes_per_s": min(getattr(b, "stream_bytes_per_s", inf) for b in known)}
    beside = rates if rates.keys() <= {f.name for f in fields(form)} and min(rates.values()) < inf else {}
    return form(base.floor_s * kernels, base.flop_per_s, base.bytes_per_s, base.sm_count, **beside)


def _times(base: BaseTime, factor: float) -> BaseTime:
    """A base that takes `factor` times as long."""
    numbers = {f.name: getattr(base, f.name) for f in fields(base) if f.name.endswith("_s")}
    return replace(base, **{n: v / factor if n.endswith("per_s") else v * factor for n, v in numbers.items()})
