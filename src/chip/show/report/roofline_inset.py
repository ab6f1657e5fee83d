"""Where variants of several operators stand on top of each other, a second view of them inside the roofline: a column
for each operator, as high as its share of its roof."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chip.hardware.roofline import RooflinePoint
from chip.show.report.figure_file import FAINT, INK
from chip.types import Op

WIDTH = 10.0  # of a crowd, as a factor of intensity
FEWEST_OPERATORS, FEWEST_MARKS, MOST_OPERATORS = 4, 12, 8
# left, bottom, width, height as shares of the axes: under the roof, where kernels are rare
BOX = (0.36, 0.12, 0.52, 0.35)
TICKS = (0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Mark:
    """A point of a roofline as it is drawn."""

    number: int
    point: RooflinePoint
    colour: str
    mark: str
    first: bool  # the baseline: drawn hollow when its operator has other variants
    alone: bool
    x: float
    y: float

    def draw(self, axes: Any, x: float, y: float, **style: Any) -> None:
        hollow = self.first and not self.alone
        face, edge = ("white", self.colour) if hollow else (self.colour, "white")
        usual = {"markersize": 6, "alpha": 0.92, "zorder": 5, "color": self.colour, "markeredgewidth": 1.3}
        axes.plot(x, y, self.mark, **{**usual, "markerfacecolor": face, "markeredgecolor": edge, **style})


def crowd(marks: Sequence[Mark], bounds: Sequence[float]) -> list[Mark]:
    """The marks that are drawn here: all variants of operators of nearly the same intensity; none where they have room,
    or where others stand in the place of this view."""
    left, right, low, high = bounds
    variants: dict[Op, list[Mark]] = {}
    for m in marks:
        if not m.alone:
            variants.setdefault(m.point.op, []).append(m)
    by_x = sorted(variants.values(), key=lambda same: same[0].x)
    near = [[same for same in by_x if first[0].x <= same[0].x <= WIDTH * first[0].x] for first in by_x]
    operators = max(near, key=len, default=[])
    found = [m for same in sorted(operators, key=lambda same: same[0].number) for m in same]

    def stands_here(m: Mark) -> bool:
        x, y = math.log(m.x / left) / math.log(right / left), math.log(m.y / low) / math.log(high / low)
        return BOX[0] - 0.05 < x < BOX[0] + BOX[2] + 0.02 and BOX[1] - 0.06 < y < BOX[1] + BOX[3] + 0.03

    if not FEWEST_OPERATORS <= len(operators) <= MOST_OPERATORS or len(found) < FEWEST_MARKS:
        return []
    return [] if any(map(stands_here, marks)) else found


def draw(axes: Any, marks: Sequence[Mark]) -> None:
    operators = list(dict.fromkeys(m.point.op for m in marks))
    shares = [m.point.share for m in marks]
    view = axes.inset_axes(BOX, zorder=8)
    view.set(yscale="log", xlim=(-0.55, len(operators) - 0.45), ylim=(min(shares) / 1.35, max(1.0, *shares) * 1.4))
    ticks = [t for t in TICKS if t >= min(shares) / 1.35]
    view.set_yticks(ticks, [f"{t:.0%}" for t in ticks], fontsize=7.5, color=INK)
    view.set_yticks([], minor=True)
    names = ["\n" * (i % 2) + op.kind for i, op in enumerate(operators)]  # every other one a line lower
    view.set_xticks(range(len(operators)), names, fontsize=7.5, color=INK)
    view.tick_params(length=0, pad=2)
    view.axhline(1, color=INK, linewidth=1.2, zorder=1)
    view.grid(True, axis="y", color="#e5e7eb", linewidth=0.7, zorder=0)
    for side in view.spines.values():
        side.set_color(FAINT)
        side.set_linewidth(0.7)
    view.set_title("the crowd at the left, drawn apart: share of its roof", fontsize=8, color=FAINT, loc="left", pad=3)
    for column, op in enumerate(operators):
        same = [m for m in marks if m.point.op == op]
        _column(view, column, same)


def _column(view: Any, column: int, same: Sequence[Mark]) -> None:
    """Variants one above the other, their numbers beside them, pushed apart where they are close."""
    spread = _apart([math.log10(m.point.share) for m in same], view)
    view.plot([column] * len(same), [m.point.share for m in same], color=same[0].colour, linewidth=1.1, alpha=0.7)
    for m, at in zip(same, spread):
        m.draw(view, column, m.point.share)
        view.text(
            column + 0.16, 10**at, str(m.number), fontsize=7.5, color=m.colour, weight="bold", va="center", ha="left"
        )


def _apart(heights: Sequence[float], view: Any) -> list[float]:
    """The same heights, at least a line of text apart from each other and as near as that allows."""
    low, high = (math.log10(v) for v in view.get_ylim())
    inches = BOX[3] * view.figure.get_size_inches()[1] * 0.8
    least = 0.125 / inches * (high - low)
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    at = [heights[i] for i in order]
    for _ in range(100):
        for i in range(1, len(at)):
            short = least - (at[i] - at[i - 1])
            if short > 1e-9:
                at[i - 1] -= short / 2
                at[i] += short / 2
    placed = dict(zip(order, at))
    return [placed[i] for i in range(len(heights))]
