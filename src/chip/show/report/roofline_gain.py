"""A roofline of one operator alone: what each of its variants reaches stands at its mark, and a box says what the best
of them bought over the first."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

from chip.show.report.figure_file import FAINT, INK
from chip.show.report.roofline_inset import Mark
from chip.units import duration, si

MOST_VARIANTS = 8
APART = 0.25  # of two rates whose texts do not cover each other, as logarithms


def is_of_one(marks: Sequence[Mark]) -> bool:
    return len({m.point.op for m in marks}) == 1 and len(marks) <= MOST_VARIANTS


def text_at(mark: Mark) -> str:
    p = mark.point
    return f"{si(p.flops_per_s, 'FLOP/s')}, {p.cost.intensity:.3g} FLOP/B"


def text_of_gain(marks: Sequence[Mark]) -> str:
    """Of the fastest over the first; nothing where that is the fastest."""
    first, best = marks[0].point, min((m.point for m in marks), key=lambda p: p.seconds)
    if best is first:
        return ""
    lines = [
        f"{first.implementation} to {best.implementation}",
        f"{duration(first.seconds)} to {duration(best.seconds)}: {first.seconds / best.seconds:.2f} times as fast",
        f"{si(first.bytes_per_s, 'B/s')} to {si(best.bytes_per_s, 'B/s')}",
        f"{first.share:.0%} to {best.share:.0%} of its roof",
    ]
    return "\n".join(lines)


def draw(axes: Any, marks: Sequence[Mark]) -> None:
    told: list[float] = []
    for m in marks:
        if any(abs(log(m.y / y)) < APART for y in told):
            continue  # its rate is in the list beside
        told.append(m.y)
        axes.annotate(
            text_at(m), (m.x, m.y), xytext=(14, 0), textcoords="offset points", fontsize=7.5, color=FAINT, va="center",
            zorder=7,
        )  # fmt: skip
    if gain := text_of_gain(marks):
        box = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": FAINT, "linewidth": 0.8}
        axes.text(0.03, 0.96, gain, transform=axes.transAxes, fontsize=8.5, color=INK, va="top", bbox=box, zorder=8)
