"""Times of a GPU's operators, from those of another GPU of the same chip.

An operator's time has parts: arithmetic, traffic of memory, and the rest (starting, latency, what moves on the chip).
The first two follow from its FLOPs and bytes, and each part changes with a rate of the GPU. Parts overlap in part: the
square of the time is the sum of their squares. `python benchmarks/same_chip.py` says how far off this is between an
H200 and an H100, both of which others measured.
"""

from __future__ import annotations

from math import sqrt

from chip.predict.limits import Peaks
from chip.records import dataclass
from chip.types import Op

SPREAD = 0.071  # standard deviation of the logarithm, from the 90th percentile over those operators


@dataclass(frozen=True, slots=True)
class Carried:
    """From one GPU to another, by the rates that kernels reach on both."""

    like: Peaks
    own: Peaks

    def seconds(self, op: Op, seconds: float) -> float:
        """What an operator takes on this GPU that takes `seconds` on the other."""
        whole, known = seconds**2, sum([part**2 for part in self.like.parts_s(op)])
        kept = min(1.0, whole / known) if known else 1.0
        rest = (whole - kept * known) * (self.like.clock_hz / self.own.clock_hz) ** 2
        return sqrt(rest + kept * sum([part**2 for part in self.own.parts_s(op)]))
