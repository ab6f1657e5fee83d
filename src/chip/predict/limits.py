"""The answer for one operator call, and the least time that it may have: that of the datasheet's peaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

from chip.hardware import Hardware
from chip.types import Op

INTERPOLATED = "interpolated"  # the source of answers from points that CHIP measured on the GPU
IMPORTED = "imported"  # of answers from points that others published
SCALED = "scaled"  # of answers from points of another GPU of the same chip
DATASHEET = "datasheet"  # of base times under a datasheet's rates
OF_POINTS = frozenset((INTERPOLATED, IMPORTED, SCALED))
COLD = 4.0  # an operator that moves this many times the L2 cache finds next to nothing in it

# seconds, low, high, bound, source, FLOPs, bytes, the seconds at the power limit (`chip.predict.clock`), and joules
# above idle. A plain tuple: a sweep makes hundreds of thousands.
Answer = tuple[float, float, float, str, str, float, float, float, float]
seconds_of: Callable[[Answer], float] = itemgetter(0)
held_s_of: Callable[[Answer], float] = itemgetter(7)


class Peaks(NamedTuple):
    """A datasheet's rates."""

    compute: dict[str, float]  # FLOP/s by ceiling name
    bytes_per_s: float
    l2_bytes: float
    clock_hz: float = inf

    def least_s(self, compute: str, flops: float, moved: float) -> float:
        """The least time of so many FLOPs and bytes. Bytes that fit in L2 are free. From `COLD` times L2 on all of them
        come from memory; in between the part that does grows in proportion."""
        return max(flops / self.compute.get(compute, inf), self.missing_l2(moved) / self.bytes_per_s)

    def missing_l2(self, moved: float) -> float:
        """The bytes that come from memory at least."""
        return moved * min(1.0, max(0.0, moved / self.l2_bytes - 1) / (COLD - 1))

    def parts_s(self, op: Op) -> tuple[float, float]:
        """Seconds of an operator's arithmetic and of its traffic of memory."""
        flops, read, written = op.cost()
        moved = self.missing_l2(read + written) if op.WARM else read + written
        return flops / self.compute[op.compute], moved / self.bytes_per_s

    def reached(self, compute: Mapping[str, float], memory: float) -> Peaks:
        """With the parts of these rates that kernels reach."""
        rates = {name: rate * compute[name] for name, rate in self.compute.items() if name in compute}
        return self._replace(compute=rates, bytes_per_s=self.bytes_per_s * memory)


UNLIMITED = Peaks({}, inf, inf)


def peaks_of(h: Hardware) -> Peaks:
    """Unlimited where there is no datasheet."""
    if h.spec is None:
        return UNLIMITED
    rates = {name: q.value for name, q in h.spec.ceilings.items()}
    return Peaks(rates, rates["hbm"], h.spec.l2_bytes.value, h.spec.boost_clock_hz.value)


def at_least(answer: Answer, least_s: float) -> Answer:
    """The answer with its times raised to `least_s`, where it says less."""
    if answer[0] >= least_s:
        return answer
    return least_s, max(answer[1], least_s), max(answer[2], least_s), *answer[3:]


def no_faster(ask: Callable[[Any], Answer], better: Callable[[Any], Answer], shift: float) -> Callable[[Any], Answer]:
    """Answers of a GPU that is nowhere better than another of its chip: never less than on that one. `shift`: the part
    that seconds at the power limit take more at the clock of this GPU's points."""

    def answer(size: Any) -> Answer:
        found = better(size)
        return at_least(ask(size), found[0] + shift * held_s_of(found))

    return answer


def scaled(answer: Answer, factor: float) -> Answer:
    """The same work in `factor` times the time."""
    seconds, low_s, high_s, bound, source, flops, moved, held_s, joules = answer
    return seconds * factor, low_s * factor, high_s * factor, bound, source, flops, moved, held_s * factor, joules


def of_a_share(share: Callable[[Any], Answer], whole: Callable[[Any], Answer], gpus: int) -> Callable[[Any], Answer]:
    """Answers for one GPU's share of an operator that is split over `gpus`: never more than `gpus` times as fast as the
    whole operator on one GPU. A base time may say more, where fewer heads fill a GPU better or are not copied, but
    nobody measured that."""

    def answer(size: Any) -> Answer:
        return at_least(share(size), whole(size)[0] / gpus)

    return answer


def added(answers: Sequence[tuple[Answer, float]]) -> Answer:
    """The sum of answers, each with a weight. Bound and source are those of the longest."""
    if len(answers) == 1 and answers[0][1] == 1.0:
        return answers[0][0]
    seconds = low_s = high_s = flops = moved = held_s = joules = longest_s = 0.0
    bound = source = ""
    for own, weight in answers:
        own_s, own_low_s, own_high_s, own_bound, own_source, own_flops, own_moved, own_held_s, own_joules = own
        seconds += own_s * weight
        low_s += own_low_s * weight
        high_s += own_high_s * weight
        flops += own_flops * weight
        moved += own_moved * weight
        held_s += own_held_s * weight
        joules += own_joules * weight
        if own_s * weight >= longest_s:
            longest_s, bound, source = own_s * weight, own_bound, own_source
    return seconds, low_s, high_s, bound, source, flops, moved, held_s, joules
