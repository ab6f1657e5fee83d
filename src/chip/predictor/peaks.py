"""What the peaks of datasheets tell: the least time that an operator may take, and its time on one GPU from that on
another of the same chip.

An operator's time has parts: arithmetic, traffic of memory, and the rest (starting, latency, what moves on the chip).
The first two follow from its FLOPs and bytes, and each part changes with a rate of the GPU. Parts overlap in part: the
square of the time is the sum of their squares. `python benchmarks/same_chip.py` says how far off this is between an
H200 and an H100, both of which others measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, sqrt
from typing import NamedTuple

from chip.hardware.gpus import Hardware
from chip.predictor.clock import PowerLimit
from chip.types import Op

COLD = 4.0  # an operator that moves this many times the L2 cache finds next to nothing in it


SPREAD = 0.083  # standard deviation of the logarithm of a carried time, from the 90th percentile over those operators


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

    def parts_s(self, op: Op, flops: float, moved: float) -> tuple[float, float]:
        """Seconds of an operator's arithmetic and of its traffic of memory."""
        missing = self.missing_l2(moved) if op.WARM else moved
        return flops / self.compute[op.compute], missing / self.bytes_per_s

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


@dataclass(frozen=True, slots=True)
class Carried:
    """From one GPU to another, by the rates that kernels reach on both, at the clocks that both settle at."""

    like: Peaks
    own: Peaks
    limit: PowerLimit = field(default_factory=PowerLimit)  # of the other GPU, which brings its points to its clock

    def seconds(self, op: Op, flops: float, moved: float, seconds: float) -> float:
        """What an operator of so many FLOPs and bytes takes on this GPU that takes `seconds` by the other's points."""
        seconds = self.limit.settled_s(seconds, flops)
        arithmetic_s, traffic_s = self.like.parts_s(op, flops, moved)
        own_arithmetic_s, own_traffic_s = self.own.parts_s(op, flops, moved)
        whole, known = seconds * seconds, arithmetic_s * arithmetic_s + traffic_s * traffic_s
        kept = min(1.0, whole / known) if known else 1.0
        rest = (whole - kept * known) * (self.like.clock_hz / self.own.clock_hz) ** 2
        return sqrt(rest + kept * (own_arithmetic_s * own_arithmetic_s + own_traffic_s * own_traffic_s))
