"""The times of operators on a GPU: by points where their kernels were measured, else by base times.

A program asks for the same operator at many sizes. What does not depend on them is worked out once, in a `TimeCurve`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from math import exp
from typing import Any

from chip.hardware import gpus, links
from chip.hardware.gpus import Hardware
from chip.hardware.points import Library
from chip.ops.attention import AnyAttention
from chip.ops.collectives import Collective
from chip.predictor.interpolate import CorrectionCurve, Points
from chip.predictor.kernels import Bases, KernelPoints
from chip.predictor.operator_time import DATASHEET, IMPORTED, AttentionTime, KernelTime, OperatorTime, weighted_sum
from chip.predictor.peaks import UNLIMITED, Carried, Peaks, peaks_of
from chip.predictor.roof import Roof, roof_of
from chip.predictor.stages import ALL, Stage
from chip.types import ChipError, Op, Seq

REFERENCE = "h200"  # the GPU whose fitted bases stand in for those of others
MOST_CURVES = 4096  # remembered
Size = Any  # a number of tokens or, for attention, a sequence


class TimeCurve:
    """The time of an operator of a model at any size: a number of tokens or, where it attends, a `Seq`."""

    def time(self, size: Size) -> OperatorTime:
        raise NotImplementedError


class TokenCurve(TimeCurve):
    """One kernel over tokens: base time and correction, worked out at powers of two and between them as the base is."""

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
        node = self._nodes.get(tokens)
        if node is None:
            assert self._corrections is not None
            node = self._nodes[tokens] = self._bases[0](tokens), *self._corrections.at((tokens,))
        return node


class PartsCurve(TimeCurve):
    """Several kernels over tokens: the sum of their times."""

    def __init__(self, estimator: Estimator, op: Op) -> None:
        self._estimator, self._make = estimator, grown(op)

    def time(self, tokens: int) -> OperatorTime:
        return self._estimator.of_parts(self._make(tokens))


class CollectiveCurve(TimeCurve):
    """A collective over tokens."""

    def __init__(self, roof: Roof, one: Collective, kernel: str) -> None:
        self._roof, self._one, self._kernel = roof, one, kernel

    def time(self, tokens: int) -> OperatorTime:
        op = replace(self._one, rows=self._one.rows * tokens)
        roof, size = self._roof, op.tensor_bytes
        if roof.link is None:
            raise ChipError(f"several GPUs cannot be predicted of {roof.name}: {roof.ranks_need}")
        if roof.link.given:
            transfer = links.over(op.kind, size, op.ranks, roof.link)
        elif gpus.is_known(roof.name):
            transfer = links.collective(op.kind, size, op.ranks, roof.name.lower(), self._kernel)
        else:
            seconds = links.formula(op.kind, size, op.ranks, roof.link)
            transfer = links.Transfer(seconds, seconds, 2 * seconds, "formula")
        source = DATASHEET if transfer.source == "formula" else IMPORTED
        flops, read, written = op.cost()
        joules = (read + written) * roof.power.per_byte_j if roof.power else 0.0
        times = transfer.seconds, transfer.low_s, transfer.high_s
        return OperatorTime(*times, "link", source, flops, read + written, joules=joules)


class SequenceCurve(TimeCurve):
    """An operator that attends, over sequences. How long one is may decide on the kind of attention."""

    def __init__(self, estimator: Estimator, op: Op) -> None:
        self._estimator, self._place = estimator, op.placing(estimator.kernels.has)
        self._by_kind: dict[str, AttentionTime] = {}

    def time(self, seq: Seq) -> OperatorTime:
        op = self._place(seq)
        if not isinstance(op, AnyAttention):
            return self._estimator.time(op)
        attention = self._by_kind.get(op.kind)
        if attention is None:
            attention = self._by_kind[op.kind] = self._estimator.attention(op)
        if seq.new > 1:
            return attention.time(op)
        time = attention.time(op) if seq.slots else attention.mean_time(op)
        # A step reads the weights of all layers between two reads of the same cache: L2 holds none of it.
        e = self._estimator
        return time.at_least(time.bytes / e.peaks.bytes_per_s) if e.of_engine else time


class LimitedCurve(TimeCurve):
    """Never less than on a GPU of the same chip that is nowhere slower, at the clock of this GPU's points."""

    def __init__(self, estimator: Estimator, curve: TimeCurve, faster: TimeCurve) -> None:
        self._estimator, self._curve, self._faster = estimator, curve, faster

    def time(self, size: Size) -> OperatorTime:
        return self._estimator.no_faster(self._curve.time(size), self._faster.time(size))


class SplitCurve(TimeCurve):
    """A GPU's share of an operator: never more than `gpus` times as fast as the whole operator on one GPU. A base time
    may say more, where fewer heads fill a GPU better or are not copied, but nobody measured that."""

    def __init__(self, curve: TimeCurve, whole: TimeCurve, gpus: int) -> None:
        self._curve, self._whole, self._gpus = curve, whole, gpus

    def time(self, size: Size) -> OperatorTime:
        return self._curve.time(size).at_least(self._whole.time(size).seconds / self._gpus)


class Estimator:
    """Times on one GPU of the kernels that an engine runs on it (`runs_as`, see `chip.predictor.kernels`)."""

    def __init__(
        self, roof: Roof, library: Library | None, runs_as: Mapping[str, str] | None = None,
        reference: Estimator | None = None, peaks: Peaks = UNLIMITED, sibling: Estimator | None = None,
        faster: Estimator | None = None,
    ) -> None:  # fmt: skip
        """`reference`: of the GPU whose fitted bases stand in. Of GPUs of the same chip: `sibling`, whose points answer
        where this one has none, and `faster`, which takes no longer for anything."""
        like, near = reference.bases if reference else None, sibling.bases if sibling else None
        self.bases: Bases = Bases(roof, library, runs_as, like, near)
        self.kernels: KernelPoints = KernelPoints(
            library, runs_as, self.bases, (sibling.kernels, carried_from(sibling, roof, peaks)) if sibling else None
        )
        self.roof: Roof = roof
        self.link_kernel = (runs_as or {}).get("all_reduce", links.NCCL)
        self.settling, self.peaks = self.bases.settling, peaks
        self.has_points, self.of_engine = bool(library or sibling), runs_as is not None
        self._faster, self._shift = faster, 0.0
        if faster and faster.settling and self.settling:
            self._shift = self.settling.measured / faster.settling.measured - 1
        self._curves: dict[Op, TimeCurve] = {}

    def time(self, op: Op) -> OperatorTime:
        """Of one call of an operator."""
        if not isinstance(op, AnyAttention):
            one, tokens = of_one_token(op)
            return self.curve(one).time(tokens)
        time = self.attention(op).time(op)
        return self.no_faster(time, self._faster.time(op)) if self._faster else time

    def curve(self, op: Op) -> TimeCurve:
        """The time of an operator that was lowered for one token, at any size."""
        curve = self._curves.get(op)
        if curve is None:
            if len(self._curves) >= MOST_CURVES:
                self._curves.clear()
            curve = self._curves[op] = self._curve(op)
        return curve

    def _curve(self, op: Op) -> TimeCurve:
        if isinstance(op, Collective):
            return CollectiveCurve(self.roof, op, self.link_kernel)
        points, plain = self.kernels.of(op), getattr(op, "plain", None)
        if plain is not None and points is None:  # it stands for a fused kernel that was not measured
            return self.curve(plain)
        curve: TimeCurve
        if op.OF_SEQUENCES:
            curve = SequenceCurve(self, op)
        elif (like := op.like_measured() if points else None) is None and op.parts():
            curve = PartsCurve(self, op)
        else:
            curve = TokenCurve(self._kernel(op, points if like else None), op, like)
        return LimitedCurve(self, curve, self._faster.curve(op)) if self._faster else curve

    def no_faster(self, time: OperatorTime, least: OperatorTime) -> OperatorTime:
        """`least`: on the GPU that takes no longer for anything."""
        return time.at_least(least.seconds + self._shift * least.limited_s)

    def attention(self, op: AnyAttention) -> AttentionTime:
        """The time of attention with these heads, over any sizes."""
        points = self.kernels.of(op) if op.sized(1, 1, 1).like_measured() is not None else None
        return AttentionTime(self._kernel(op, points), op, self.of_parts)

    def _kernel(self, op: Op, points: Points | None) -> KernelTime:
        limit, bases = self.kernels.limit(op), self.bases.of(op, "")
        return KernelTime(op, self.roof, self.peaks, limit, points, bases, self.kernels.carried(op))

    def of_parts(self, op: Op) -> OperatorTime:
        """The time of an operator of several kernels as the sum of theirs."""
        flops, read, written = op.cost()
        total = weighted_sum([(self.time(part), 1.0) for part in op.parts()])
        return total._replace(flops=flops, bytes=read + written, limited_s=0.0)


def carried_from(sibling: Estimator, roof: Roof, own: Peaks) -> Carried:
    """By the parts of the datasheets that kernels reach on both. What memory reaches is known of the reference GPU."""
    measured = gpus.find(REFERENCE)
    memory = roof_of(measured).memory / peaks_of(measured).bytes_per_s
    like, reached = (
        promised.reached({name: r.value / promised.compute[name] for name, r in of.compute.items()}, memory)
        for promised, of in ((sibling.peaks, sibling.roof), (own, roof))
    )
    return Carried(like, reached)


def estimator_of(h: Hardware, runs_as: Mapping[str, str] | None = None, stage: Stage = ALL) -> Estimator:
    """`runs_as`: which kernel an engine runs of each operator. `stage`: what times may rest on."""
    return _estimator(h, None if runs_as is None else tuple(runs_as.items()), stage)


@lru_cache(maxsize=32)
def library(h: Hardware, stage: Stage) -> Library | None:
    """What was measured of operators on this GPU: in its calibration, and points."""
    calibrated = h.profile.operators if h.profile and stage >= Stage.CALIBRATED else {}
    folders = h.points if stage.has_points else ()
    return Library(folders, calibrated) if folders or calibrated else None


@lru_cache(maxsize=128)  # models on one GPU and engine share what its points say; a ranking asks all GPUs
def _estimator(h: Hardware, chosen: tuple[tuple[str, str], ...] | None, stage: Stage) -> Estimator:
    runs_as = None if chosen is None else dict(chosen)
    points = library(h, stage)
    if not stage.has_points:
        return Estimator(roof_of(h, stage), points, runs_as, peaks=peaks_of(h))
    device = points.about.get("device") if points else None
    if device and h.profile is not None and device != h.profile.device:
        raise ChipError(f"{h.points[0]}: holds points of {device}, the profile is of {h.profile.device}")
    # fitted bases of another GPU stand in only where this one's own ceilings were not measured
    like = None if h.profile is not None else estimator_of(gpus.find(REFERENCE), runs_as)
    sibling, faster = (estimator_of(gpus.find(n), runs_as, stage) if n else None for n in (h.sibling, h.faster))
    return Estimator(roof_of(h), points, runs_as, like, peaks_of(h), sibling, faster)


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
