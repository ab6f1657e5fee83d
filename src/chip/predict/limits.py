"""What no answer may pass, however it was found: the peaks of the datasheet, and as many GPUs as there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple

from chip.hardware import Hardware

INTERPOLATED = "interpolated"  # the source of what points answer
# seconds, low, high, bound, source, FLOPs, bytes, and of the seconds those that the power limit holds (`clock`)
Answer = tuple[float, float, float, str, str, float, float, float]
COLD = 4.0  # times the L2 cache: what an operator that moves so much finds in it is of no account


class Peaks(NamedTuple):
    """Of a datasheet."""

    compute: dict[str, float]  # FLOP/s by ceiling name
    bytes_per_s: float
    l2_bytes: float

    def least_s(self, compute: str, flops: float, moved: float) -> float:
        """Seconds that so many FLOPs and bytes take at the least. Bytes that lie in L2 cost nothing here, those of an
        operator that moves `COLD` times as many all come from memory, and between the two it is a part of them."""
        seconds = flops / self.compute.get(compute, inf)
        if moved <= self.l2_bytes:
            return seconds
        return max(seconds, moved * min(1.0, (moved / self.l2_bytes - 1) / (COLD - 1)) / self.bytes_per_s)


UNLIMITED = Peaks({}, inf, inf)


def peaks_of(h: Hardware) -> Peaks:
    """Unlimited where there is no datasheet."""
    if h.spec is None:
        return UNLIMITED
    rates = {name: q.value for name, q in h.spec.ceilings.items()}
    return Peaks(rates, rates["hbm"], h.spec.l2_bytes.value)


def at_least(found: Answer, seconds: float) -> Answer:
    return (seconds, max(found[1], seconds), max(found[2], seconds), *found[3:]) if found[0] < seconds else found


def of_a_share(share: Callable[[Any], Answer], whole: Callable[[Any], Answer], gpus: int) -> Callable[[Any], Answer]:
    """A share of an operator: not more than so many times as fast as all of it on one GPU. Where its base says more,
    because fewer heads fill a GPU better or are not copied, nobody measured that."""

    def at(size: Any) -> Answer:
        return at_least(share(size), whole(size)[0] / gpus)

    return at


def added(answers: Sequence[tuple[Answer, float]]) -> Answer:
    """Answers, each so many times. Source and bound are those of the longest."""
    if len(answers) == 1 and answers[0][1] == 1.0:
        return answers[0][0]
    seconds = low_s = high_s = flops = moved = held_s = longest_s = 0.0
    bound = source = ""
    for (own_s, own_low_s, own_high_s, by, of, own_flops, own_moved, own_held_s), part in answers:
        seconds += own_s * part
        low_s += own_low_s * part
        high_s += own_high_s * part
        flops += own_flops * part
        moved += own_moved * part
        held_s += own_held_s * part
        if own_s * part >= longest_s:
            longest_s, bound, source = own_s * part, by, of
    return seconds, low_s, high_s, bound, source, flops, moved, held_s
