"""A point of a roofline as it is drawn."""

from __future__ import annotations

from chip.records import dataclass
from chip.roofline import RooflinePoint


@dataclass(frozen=True, slots=True)
class Mark:
    number: int
    point: RooflinePoint
    colour: str
    mark: str
    first: bool  # the baseline: drawn hollow when its operator has other variants
    alone: bool
    x: float
    y: float
