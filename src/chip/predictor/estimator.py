"""The times of operators on a GPU: by points where their kernels were measured, else by base times.

A program asks for the same operator at many sizes. What does not depend on them is worked out once: `curve` gives the
time of an operator over the number of tokens or, for attention, over a sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from chip.hardware import gpus, links
from chip.hardware.gpus import Hardware
from chip.hardware.points import Library
from chip.ops.attention import AnyAttention
from chip.ops.collectives import Collective
from chip.predictor.attention_time import AttentionTime
from chip.predictor.bases import Bases
from chip.predictor.interpolate import Points
from chip.predictor.kernel_points import KernelPoints
from chip.predictor.operator_time import (
    DATASHEET,
    IMPORTED,
    KernelTime,
    OperatorCurve,
    OperatorTime,
    grown,
    of_one_token,
    weighted_sum,
)
from chip.predictor.peaks import UNLIMITED, Carried, Peaks, peaks_of
from chip.predictor.roof import Roof, roof_of
from chip.predictor.stages import ALL, Stage
from chip.types import ChipError, Op, Seq

REFERENCE = "h200"  # the GPU whose fitted bases stand in for those of others
MOST_CURVES, MOST_SIZES = 4096, 256  # remembered: operators, and numbers of tokens or sequences of each
Curve = Callable[[Any], OperatorTime]  # from a number of tokens or, for attention, from a sequence


class Estimator:
    """Times on one GPU of the kernels that an engine runs on it (`runs_as`, see `chip.predictor.kernel_points`)."""

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
            library, runs_as, self.bases, (sibling.kernels, carried_from(sibling, peaks)) if sibling else None
        )
        self.roof: Roof = roof
        self.link_kernel = (runs_as or {}).get("all_reduce", links.NCCL)
        self.settling, self.peaks = self.bases.settling, peaks
        self.has_points, self.of_engine = bool(library or sibling), runs_as is not None
        self._faster, self._shift = faster, 0.0
        if faster and faster.settling and self.settling:
            self._shift = self.settling.measured / faster.settling.measured - 1
        self._curves: dict[Op, Curve] = {}

    def time(self, op: Op) -> OperatorTime:
        """Of one call of an operator."""
        if not isinstance(op, AnyAttention):
            one, tokens = of_one_token(op)
            return self.curve(one)(tokens)
        time = self._attention(op).time(op)
        return self._no_faster(time, self._faster.time(op)) if self._faster else time

    def curve(self, op: Op) -> Curve:
        """The time of an operator that was lowered for one token, over the number of tokens or, for what depends on
        sequences, over a `Seq`."""
        if op not in self._curves:
            if len(self._curves) >= MOST_CURVES:
                self._curves.clear()
            self._curves[op] = self._curve(op)
        return self._curves[op]

    def _curve(self, op: Op) -> Curve:
        if isinstance(op, Collective):
            return partial(self._over_link, op)
        points, plain = self.kernels.of(op), getattr(op, "plain", None)
        if plain is not None and points is None:  # it stands for a fused kernel that was not measured
            return self.curve(plain)
        curve: Curve
        if op.OF_SEQUENCES:
            curve = partial(self._over_sequences, op.placing(self.kernels.has), {})
        else:
            like = op.like_measured() if points else None
            if like is None and op.parts():
                curve = partial(self._of_parts_over, grown(op))
            else:
                curve = OperatorCurve(self._kernel(op, points if like else None), op, like).time
        if self._faster is not None:
            curve = partial(self._slowed, curve, self._faster.curve(op))
        return lru_cache(maxsize=MOST_SIZES)(curve)

    def _slowed(self, curve: Curve, faster: Curve, size: Any) -> OperatorTime:
        return self._no_faster(curve(size), faster(size))

    def _no_faster(self, time: OperatorTime, least: OperatorTime) -> OperatorTime:
        """Never less than on a GPU of the same chip that is nowhere slower, at the clock of this GPU's points."""
        return time.at_least(least.seconds + self._shift * least.limited_s)

    def _kernel(self, op: Op, points: Points | None) -> KernelTime:
        limit, bases = self.kernels.limit(op), self.bases.of(op, "")
        return KernelTime(op, self.roof, self.peaks, limit, points, bases, self.kernels.carried)

    def _attention(self, op: AnyAttention) -> AttentionTime:
        points = self.kernels.of(op) if op.sized(1, 1, 1).like_measured() is not None else None
        return AttentionTime(self._kernel(op, points), op, self.of_parts)

    def _over_sequences(self, place: Callable[[Seq], Op], by_kind: dict[str, AttentionTime], seq: Seq) -> OperatorTime:
        """`by_kind`: the length of a sequence may decide on the kind of attention."""
        op = place(seq)
        if not isinstance(op, AnyAttention):
            return self.time(op)
        if op.kind not in by_kind:
            by_kind[op.kind] = self._attention(op)
        attention = by_kind[op.kind]
        if seq.new > 1:
            return attention.time(op)
        time = attention.time(op) if seq.slots else attention.mean_time(op)
        # A step reads the weights of all layers between two reads of the same cache: L2 holds none of it.
        return time.at_least(time.bytes / self.peaks.bytes_per_s) if self.of_engine else time

    def of_parts(self, op: Op) -> OperatorTime:
        """The time of an operator of several kernels as the sum of theirs."""
        flops, read, written = op.cost()
        total = weighted_sum([(self.time(part), 1.0) for part in op.parts()])
        return total._replace(flops=flops, bytes=read + written, limited_s=0.0)

    def _of_parts_over(self, make: Callable[[int], Op], tokens: int) -> OperatorTime:
        return self.of_parts(make(tokens))

    def _over_link(self, one: Collective, tokens: int) -> OperatorTime:
        op = replace(one, rows=one.rows * tokens)
        roof, size = self.roof, op.tensor_bytes
        if roof.link is None:
            raise ChipError(f"several GPUs cannot be predicted of {roof.name}: {roof.ranks_need}")
        if roof.link.given:
            transfer = links.over(op.kind, size, op.ranks, roof.link)
        elif gpus.is_known(roof.name):
            transfer = links.collective(op.kind, size, op.ranks, roof.name.lower(), self.link_kernel)
        else:
            seconds = links.formula(op.kind, size, op.ranks, roof.link)
            transfer = links.Transfer(seconds, seconds, 2 * seconds, "formula")
        source = DATASHEET if transfer.source == "formula" else IMPORTED
        flops, read, written = op.cost()
        joules = (read + written) * roof.power.per_byte_j if roof.power else 0.0
        times = transfer.seconds, transfer.low_s, transfer.high_s
        return OperatorTime(*times, "link", source, flops, read + written, joules=joules)


def carried_from(sibling: Estimator, own: Peaks) -> Carried:
    """By the parts of its datasheet that the sibling's kernels reach, and as much of this GPU's. What memory reaches is
    known of the reference GPU."""
    promised, measured = sibling.peaks, gpus.find(REFERENCE)
    compute = {name: rate.value / promised.compute[name] for name, rate in sibling.roof.compute.items()}
    memory = roof_of(measured).memory / peaks_of(measured).bytes_per_s
    return Carried(promised.reached(compute, memory), own.reached(compute, memory))


def estimator_of(h: Hardware, runs_as: Mapping[str, str] | None = None, stage: Stage = ALL) -> Estimator:
    """`runs_as`: which kernel an engine runs of each operator. `stage`: what times may rest on."""
    return _estimator(h, None if runs_as is None else tuple(runs_as.items()), stage)


@lru_cache(maxsize=32)
def library(h: Hardware, stage: Stage) -> Library | None:
    """What was measured of operators on this GPU: in its calibration, and points."""
    calibrated = h.profile.operators if h.profile and stage >= Stage.CALIBRATED else {}
    folders = h.points if stage >= Stage.POINTS else ()
    return Library(folders, calibrated) if folders or calibrated else None


@lru_cache(maxsize=128)  # models on one GPU and engine share what its points say; a ranking asks all GPUs
def _estimator(h: Hardware, chosen: tuple[tuple[str, str], ...] | None, stage: Stage) -> Estimator:
    runs_as = None if chosen is None else dict(chosen)
    points = library(h, stage)
    if stage < Stage.POINTS:
        return Estimator(roof_of(h, stage), points, runs_as, peaks=peaks_of(h))
    device = points.about.get("device") if points else None
    if device and h.profile is not None and device != h.profile.device:
        raise ChipError(f"{h.points[0]}: holds points of {device}, the profile is of {h.profile.device}")
    # fitted bases of another GPU stand in only where this one's own ceilings were not measured
    like = None if h.profile is not None else estimator_of(gpus.find(REFERENCE), runs_as)
    sibling, faster = (estimator_of(gpus.find(n), runs_as, stage) if n else None for n in (h.sibling, h.faster))
    return Estimator(roof_of(h), points, runs_as, like, peaks_of(h), sibling, faster)
