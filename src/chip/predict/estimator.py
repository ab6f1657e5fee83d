"""The time of an operator on a GPU: interpolated where its kernel was measured, else its base time.

A program asks for the same operator at many sizes. So what does not depend on the size is done once, and the result is
a function: `along` gives one of the number of tokens, `over` one of a sequence. They return answers as
`chip.predict.limits` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import exp, inf
from typing import Any, cast

from chip import hardware, links, ops
from chip.hardware import Hardware
from chip.ops.attention import AnyAttention
from chip.ops.collective import Collective
from chip.predict.attention import AttentionTimes
from chip.predict.bases import Bases
from chip.predict.carried import Carried
from chip.predict.interpolate import Z90, TimeCurve
from chip.predict.kernel_points import MOST_CURVES, KernelPoints, grown, of_one_token
from chip.predict.library import Library, library
from chip.predict.limits import DATASHEET, IMPORTED, UNLIMITED, Answer, Peaks, added, at_least, no_faster, peaks_of
from chip.predict.rising_grid import RisingGrid
from chip.predict.roof import Roof, roof_of
from chip.predict.shares import RoofBase
from chip.predict.stages import ALL, Stage
from chip.types import ChipError, Op, Seq

REFERENCE = "h200"  # the GPU whose fitted bases stand in for those of others
AlongTokens = Callable[[int], Answer]
OverSequences = Callable[[Seq], Answer]
Answering = Callable[[float, float, float, float, float, float], Answer]


class Estimator:
    """Answers for one GPU and the kernels that an engine runs on it (`runs_as`, see `chip.predict.kernel_points`)."""

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
        self.settling, self.peaks = self.bases.settling, peaks
        self.has_points, self.of_engine = bool(library or sibling), runs_as is not None
        self._faster, self._shift = faster, 0.0
        if faster and faster.settling and self.settling:
            self._shift = self.settling.measured / faster.settling.measured - 1
        self.grids: dict[Op, dict[tuple[object, float | None], RisingGrid]] = {}  # see `chip.predict.attention`

    def __call__(self, op: Op) -> Answer:
        """The answer for one call of an operator."""
        if isinstance(op, AnyAttention):
            return self._bounded(lambda op: AttentionTimes(self, op)(op), self._faster)(op)
        if isinstance(op, Collective):
            return self._over_link(op)
        one, tokens = of_one_token(op)
        return self.along(one)(tokens)

    def along(self, op: Op) -> AlongTokens:
        """From a number of tokens to the answer, for an operator that was lowered for one token."""
        if isinstance(op, Collective):
            make = grown(op)
            return lambda tokens: self._over_link(cast(Collective, make(tokens)))
        return self._bounded(self._along(op), self._faster and self._faster.along(op))

    def _bounded(self, ask: Callable[[Any], Answer], faster: Callable[[Any], Answer] | None) -> Callable[[Any], Answer]:
        return no_faster(ask, faster, self._shift) if faster else ask

    def _along(self, op: Op) -> AlongTokens:
        make, points = grown(op), self.kernels.of(op)
        plain = getattr(op, "plain", None)  # stands for a fused kernel that was not measured
        if plain is not None and points is None:
            return self.along(plain)
        like = op.like_measured()
        if like is None or points is None:
            return (lambda tokens: self.summed(make(tokens))) if op.parts() else self._base_along(op, make)
        work, answered = _work_along(op), self.answering(op, points.source)
        curve: TimeCurve | None = None

        def answer(tokens: int) -> Answer:
            nonlocal curve
            if curve is None:  # made when first asked for: a program has operators that no step asks for
                curve = self.kernels.curve(like, points)
            seconds, spread, held_s = curve.at(tokens)
            off = exp(Z90 * spread)
            flops, moved = work(tokens)
            return answered(seconds, seconds / off, seconds * off, flops, moved, held_s)

        return answer

    def _base_along(self, op: Op, make: Callable[[int], Op]) -> AlongTokens:
        """The same for an operator without points."""
        value, fast, slow = (base.over(make) for base in self.bases.of(op, ""))
        work, answered = _work_along(op), self.answering(op, self.roof.source)

        def answer(tokens: int) -> Answer:
            flops, moved = work(tokens)
            return answered(value(tokens), fast(tokens), slow(tokens), flops, moved, 0.0)

        return answer

    def over(self, op: Op) -> OverSequences:
        """From a sequence to the answer, for attention and what else depends on sequences."""
        return self._bounded(self._over(op), self._faster and self._faster.over(op))

    def _over(self, op: Op) -> OverSequences:
        plain = getattr(op, "plain", None)
        if plain is not None and self.kernels.of(op) is None:
            return self.over(plain)
        # A step reads the weights of all layers between two reads of the same cache: L2 holds none of it.
        memory, place = self.peaks.bytes_per_s if self.of_engine else inf, op.placing(self.kernels.has)
        by_kind: dict[str, AttentionTimes] = {}  # the length of a sequence may decide on the kind of attention

        def answer(seq: Seq) -> Answer:
            placed = place(seq)
            if not isinstance(placed, AnyAttention):
                return self(placed)
            if placed.kind not in by_kind:
                by_kind[placed.kind] = AttentionTimes(self, placed)
            times = by_kind[placed.kind]
            if seq.new > 1:
                return times(placed)
            found = times(placed) if seq.slots else times.averaged(placed)
            moved = found[6]
            return at_least(found, moved / memory)

        return answer

    def answering(self, op: Op, source: str) -> Answering:
        """A function that makes an answer from seconds, low, high, FLOPs, bytes and held seconds. It names the bound,
        and raises times to what the datasheet's peaks allow."""
        roof, compute, peaks = self.roof, op.compute, self.peaks
        rate = roof.compute[compute].value if compute in roof.compute else inf
        moving, floor_s = roof.moving(op).value, inf
        if source == roof.source and isinstance(base := self.bases.of(op, "")[0], RoofBase):
            rate, moving, floor_s = base.flop_per_s, base.bytes_per_s, base.floor_s
        peak, memory, joules = peaks.compute.get(compute, inf), peaks.bytes_per_s, self._joules(op)

        def answered(seconds: float, low_s: float, high_s: float, flops: float, moved: float, held_s: float) -> Answer:
            roof_s, bound = flops / rate, "compute"
            if moved > moving * roof_s:
                roof_s, bound = moved / moving, "memory"
            bound = "launch" if seconds > 2 * roof_s and seconds < 2 * floor_s else bound
            answer = seconds, low_s, high_s, bound, source, flops, moved, held_s, joules(flops, moved)
            if flops <= peak * seconds and moved <= memory * seconds:
                return answer
            return at_least(answer, peaks.least_s(compute, flops, moved))

        return answered

    def _joules(self, op: Op) -> Callable[[float, float], float]:
        """From FLOPs and bytes to joules above idle; 0 where the GPU's power was not measured."""
        power = self.roof.power
        if power is None:
            return lambda flops, moved: 0.0
        byte_j, flop_j = power.per_byte_j, power.per_flop_j[op.compute] if ops.multiplies(op.kind) else 0.0
        return lambda flops, moved: flops * flop_j + moved * byte_j

    def is_unaligned(self, op: Op) -> bool:
        """Whether points show that a few more keys, which align them, would take less time."""
        if not isinstance(op, AnyAttention) or len(op.alignments()) == 1 or op.like_measured() is None:
            return False
        form = op.form()
        if form is None or self.kernels.of(op) is None:
            return False
        best, own = AttentionTimes(self, op).by_alignment(op, form)
        return own > best

    def is_raised(self, op: Op) -> bool:
        """Whether its time was raised to that of points with fewer rows (`TimeCurve`)."""
        like, points = op.like_measured(), self.kernels.of(op)
        if like is None or points is None or isinstance(op, AnyAttention):
            return False
        one, tokens = of_one_token(like)
        return self.kernels.curve(one, points).is_raised(tokens)

    def summed(self, op: Op) -> Answer:
        """An operator of several kernels: the sum of its parts."""
        flops, read, written = op.cost()
        found = added([(self(part), 1.0) for part in op.parts()])
        return *found[:5], flops, read + written, 0.0, found[8]

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
        source = DATASHEET if found.source == "formula" else IMPORTED
        flops, read, written = op.cost()
        joules = self._joules(op)(flops, read + written)
        return found.seconds, found.low_s, found.high_s, "link", source, flops, read + written, 0.0, joules


@lru_cache(maxsize=MOST_CURVES)  # every GPU of a ranking is asked for the same
def _work_along(op: Op) -> Callable[[int], tuple[float, float]]:
    """From a number of tokens to FLOPs and bytes, for an operator lowered for one token. Most are linear in the tokens:
    then four numbers replace the operator's own formula."""
    make = grown(op)
    (f1, b1), (f2, b2), (f4, b4) = ((c.flops, c.bytes) for c in (make(n).cost() for n in (1, 2, 4)))
    if (f4 - f2, b4 - b2) != (2 * (f2 - f1), 2 * (b2 - b1)):

        def work(tokens: int) -> tuple[float, float]:
            cost = make(tokens).cost()
            return cost.flops, cost.bytes

        return work
    token_flops, token_bytes, fixed_flops, fixed_bytes = f2 - f1, b2 - b1, 2 * f1 - f2, 2 * b1 - b2
    return lambda tokens: (fixed_flops + token_flops * tokens, fixed_bytes + token_bytes * tokens)


def carried_from(sibling: Estimator, own: Peaks) -> Carried:
    """By the parts of its datasheet that the sibling's kernels reach, and as much of this GPU's. What memory reaches is
    known of the reference GPU."""
    promised, measured = sibling.peaks, hardware.find(REFERENCE)
    compute = {name: rate.value / promised.compute[name] for name, rate in sibling.roof.compute.items()}
    memory = roof_of(measured).memory / peaks_of(measured).bytes_per_s
    return Carried(promised.reached(compute, memory), own.reached(compute, memory))


def estimator_of(h: Hardware, runs_as: Mapping[str, str] | None = None, stage: Stage = ALL) -> Estimator:
    """`runs_as`: which kernel an engine runs of each operator. `stage`: what times may rest on."""
    return _estimator(h, None if runs_as is None else tuple(runs_as.items()), stage)


@lru_cache(maxsize=128)  # models on one GPU and engine share what its points say; a ranking asks all GPUs
def _estimator(h: Hardware, chosen: tuple[tuple[str, str], ...] | None, stage: Stage) -> Estimator:
    runs_as = None if chosen is None else dict(chosen)
    if stage < Stage.POINTS:
        return Estimator(roof_of(h, stage), None, runs_as, peaks=peaks_of(h))
    found = library(h.points) if h.points else None
    if found and h.profile is not None and found.device and found.device != h.profile.device:
        raise ChipError(f"{h.points[0]}: holds points of {found.device}, the profile is of {h.profile.device}")
    # fitted bases of another GPU stand in only where this one's own ceilings were not measured
    like = None if h.profile is not None else estimator_of(hardware.find(REFERENCE), runs_as)
    sibling, faster = (estimator_of(hardware.find(n), runs_as, stage) if n else None for n in (h.sibling, h.faster))
    return Estimator(roof_of(h), found, runs_as, like, peaks_of(h), sibling, faster)
