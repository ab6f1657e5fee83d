"""An operator of several kernels as the sum of its parts, where it was not measured as a whole."""

from __future__ import annotations

from collections.abc import Callable

from chip.ops.composed import Composed
from chip.types import Cost, Estimate, Op


def summed(op: Composed, one: Callable[[Op], tuple[Estimate, Cost]]) -> tuple[Estimate, Cost]:
    """Source and bound are those of the longest part."""
    found = [one(part)[0] for part in op.parts()]
    seconds = sum([e.seconds for e in found])
    low_s, high_s = sum([e.low_s for e in found]), sum([e.high_s for e in found])
    longest = max(found, key=lambda e: e.seconds)
    return Estimate(seconds, low_s, high_s, longest.source, longest.bound), op.cost()
