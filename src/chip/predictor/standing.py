"""Who stands first where figures are uncertain.

A kind of GPU that nobody measured has a wide interval: by the estimate alone it may lead though little is known of it.
So the order goes by the end of the 90 % interval that one can count on: the low end of what should be large, the high
end of what should be small. Two are a tie where each estimate lies within the interval of the other; a figure whose
interval spans everything is not a tie with everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """What is ranked, with its 90 % interval. `larger` says whether more of it is better."""

    value: float
    low: float
    high: float
    larger: bool

    @property
    def order(self) -> tuple[float, float]:
        """The smallest is the best: by the end one can count on, then by the estimate."""
        return (-self.low, -self.value) if self.larger else (self.high, self.value)

    def ties_with(self, other: Figure) -> bool:
        return self.low <= other.value <= self.high and other.low <= self.value <= other.high

    def may_beat(self, other: Figure) -> bool:
        """Whether its better end is better than the other's estimate."""
        return self.high > other.value if self.larger else self.low < other.value


def places(figures: Sequence[Figure]) -> list[tuple[int, bool]]:
    """Of figures in their order: the place of each, from 1, and whether it shares it. Who is a tie with the first of a
    place shares that place, as in a table of sports: 1, 1, 3."""
    firsts: list[int] = []
    for i, figure in enumerate(figures):
        shares = bool(firsts) and figures[firsts[-1]].ties_with(figure)
        firsts.append(firsts[-1] if shares else i)
    return [(first + 1, firsts.count(first) > 1) for first in firsts]
