"""The roofline as a picture: log-log, a slanted roof for each memory level, a flat one for each dtype, numbered points
with their names in a list beside, so that thirty points stay readable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chip.hardware.roofline import RooflinePoint, Roofs
from chip.show.report import figure_file, roofline_gain, roofline_inset
from chip.show.report.figure_file import FAINT, INK
from chip.show.report.roofline_inset import Mark
from chip.types import ChipError
from chip.units import duration, si

# Okabe and Ito's palette, told apart by colour-blind readers too; kinds beyond it share colours but not marks.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8C6D00", "#56B4E9", "#5B4B8A", "#E69F00", "#000000", "#7F7F7F",
)  # fmt: skip
MARKS = ("o", "D", "^", "s", "P", "v", "X", "*")  # the first variant of an operator, the second, ...
NEXT_ROUND = 3  # marks to skip where the colours begin again
MEMORY_SHADE, COMPUTE_SHADE = "#dbeafe", "#fdebd3"
MAX_POINTS = 120
ROW = 0.2  # inches a line of the list
LIST_WIDTH, LIST_LINES = 4.75, 40


def save(path: Path, points: Sequence[RooflinePoint], roofs: Roofs) -> None:
    """Draw into a .png or .svg (or .pdf) file."""
    if len(points) > MAX_POINTS:
        raise ChipError(
            f"{len(points)} points are more than a picture holds ({MAX_POINTS}); choose with --op or --context"
        )
    figure_file.save(path, lambda: _draw(points, roofs))


def _draw(points: Sequence[RooflinePoint], roofs: Roofs) -> Any:
    from matplotlib.figure import Figure

    columns = math.ceil(len(points) / LIST_LINES)
    lines = math.ceil(len(points) / max(1, columns))
    plot = 7.4  # inches, and the margins of the axes beside it
    list_left = 0.85 + plot + 1.3
    width, height = list_left + columns * LIST_WIDTH, max(6.4, 2.0 + ROW * lines)
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0.85 / width, 0.62 / height, plot / width, (height - 1.42) / height))
    shown = _shown_roofs(points, roofs)
    bounds = _bounds(points, roofs, shown)
    _frame(axes, bounds)
    _shade(axes, roofs, shown, bounds)
    marks = _marks(points, bounds)
    _roofs(axes, roofs, shown, bounds, marks)
    crowd = roofline_inset.crowd(marks, bounds)
    _points(axes, marks, bounds, crowd)
    if crowd:
        roofline_inset.draw(axes, crowd)
    elif roofline_gain.is_of_one(marks):
        roofline_gain.draw(axes, marks)
    figure.text(0.85 / width, 1 - 0.38 / height, roofs.title, fontsize=12.5, weight="bold", color=INK)
    figure.text(0.85 / width, 1 - 0.62 / height, _subtitle(points), fontsize=9, color=FAINT)
    for column in range(columns):
        left = (list_left + column * LIST_WIDTH) / width
        box = (left, 0.0, (LIST_WIDTH - 0.25) / width, 1.0)
        here = marks[column * lines : (column + 1) * lines]
        _list(figure, here, box, height, _notes(marks) if column == columns - 1 else [])
    return figure


def _subtitle(points: Sequence[RooflinePoint]) -> str:
    if not points:
        return "roofs by memory level and number format"
    operators = len({p.op for p in points})
    contexts = " and ".join(dict.fromkeys(p.context for p in points))
    return f"{operators} operator{'s' if operators > 1 else ''}, median times, {contexts}"


def _shown_roofs(points: Sequence[RooflinePoint], roofs: Roofs) -> list[str]:
    """Compute ceilings worth drawing: those the points run under, or all where there are none."""
    used = {p.compute.name for p in points}
    return [name for name, roof in roofs.compute.items() if not points or roof.name in used]


def _bounds(points: Sequence[RooflinePoint], roofs: Roofs, shown: Sequence[str]) -> tuple[float, float, float, float]:
    top = max([roofs.compute[n].value for n in shown] + [p.flops_per_s for p in points], default=1e12)
    hbm = roofs.memory["hbm"].value
    ridge = top / hbm
    xs = [p.cost.intensity for p in points if p.cost.flops] + [ridge / (4 if points else 400), ridge * 4]
    left, right = 10 ** math.floor(math.log10(min(xs)) - 0.05), max(xs) * 2.2
    ys = [p.flops_per_s for p in points if p.cost.flops]
    ys += [p.bytes_per_s * left * 1.25 for p in points if not p.cost.flops]
    low = min(ys) if ys else hbm * left
    return left, right, min(low / 2.5, top / 1e3), top * 3.2


def _frame(axes: Any, bounds: tuple[float, float, float, float]) -> None:
    left, right, low, high = bounds
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(low, high))
    axes.set_xlabel("arithmetic intensity (FLOP per byte of memory traffic)", color=INK)
    axes.set_ylabel("achieved rate (FLOP/s)", color=INK)
    axes.xaxis.set_major_formatter(lambda v, _: f"{v:g}")
    axes.yaxis.set_major_formatter(lambda v, _: si(v, ""))
    axes.grid(True, which="major", color="white", linewidth=0.9, zorder=1)
    axes.tick_params(which="both", color=FAINT, labelcolor=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)


def _shade(axes: Any, roofs: Roofs, shown: Sequence[str], bounds: tuple[float, float, float, float]) -> None:
    """Memory-bound to the left of the highest ceiling's ridge, compute-bound to its right, both under the roof."""
    left, right, low, _ = bounds
    if not shown:
        return
    top = max(roofs.compute[n].value for n in shown)
    hbm = roofs.memory["hbm"].value
    ridge = top / hbm
    axes.fill_between([left, ridge], [hbm * left, top], low, color=MEMORY_SHADE, zorder=0, linewidth=0)
    axes.fill_between([ridge, right], [top, top], low, color=COMPUTE_SHADE, zorder=0, linewidth=0)
    base = low * 1.25
    style = {"fontsize": 9, "style": "italic", "color": FAINT, "va": "bottom", "zorder": 2}
    axes.text(ridge / 1.12, base, "memory-bound", ha="right", **style)
    axes.text(ridge * 1.12, base, "compute-bound", ha="left", **style)
    axes.plot([ridge, ridge], [low, top], color=FAINT, linewidth=0.8, linestyle=(0, (2, 3)), zorder=2)


def _roofs(axes: Any, roofs: Roofs, shown: Sequence[str], bounds: Sequence[float], marks: Sequence[Mark]) -> None:
    left, right, low, high = bounds
    top = max((roofs.compute[n].value for n in shown), default=high)
    fastest = max(r.value for r in roofs.memory.values())
    for roof in roofs.memory.values():
        start = max(left, low / roof.value)
        end = top / roof.value
        axes.plot([start, end], [roof.value * start, top], color=INK, linewidth=1.6, zorder=3)
        crossed = [roofs.compute[n].value for n in shown]
        _slanted(axes, f"{roof.name} {si(roof.value, 'B/s')}", roof.value, (start, end), bounds, marks, crossed)
    names: list[tuple[float, str, str]] = []
    for value in dict.fromkeys(roofs.compute[n].value for n in shown):
        same = [roofs.compute[n] for n in shown if roofs.compute[n].value == value]
        axes.plot([value / fastest, right], [value] * 2, color=INK, linewidth=1.6, zorder=3)
        names.append((value, f"{', '.join(r.name for r in same)}  {si(value, '')}", INK))
        for roof in same:
            if roof.settled and abs(roof.settled / value - 1) > 0.01:
                ends = [roof.settled / fastest, right]
                axes.plot(ends, [roof.settled] * 2, color=INK, linewidth=1, linestyle=(0, (5, 3)), zorder=3)
                names.append((roof.settled, f"   settled  {si(roof.settled, '')}", FAINT))
    _name_ceilings(axes, names, bounds)


def _name_ceilings(axes: Any, names: list[tuple[float, str, str]], bounds: Sequence[float]) -> None:
    """Names of the flat roofs in the margin at the right, pushed apart where the roofs lie close."""
    low, high = bounds[2], bounds[3]
    height = axes.get_position().height * axes.figure.get_size_inches()[1]
    least = 0.155 / height  # inches between two lines of text
    at: list[float] = []
    for value, text, colour in sorted(names, reverse=True):
        y = math.log(value / low) / math.log(high / low)
        y = min(y, at[-1] - least) if at else y
        at.append(y)
        axes.text(1.01, y, text, transform=axes.transAxes, ha="left", va="center", fontsize=8.5, color=colour)


def _slanted(
    axes: Any, text: str, value: float, ends: tuple[float, float], bounds: Sequence[float], marks: Sequence[Mark],
    crossed: Sequence[float],
) -> None:  # fmt: skip
    """A bandwidth's name along its line and above it, where the fewest points are and no flat roof crosses it."""
    left, right, low, high = bounds
    box = axes.get_position()
    figure = axes.figure.get_size_inches()
    per_x = box.width * figure[0] / math.log10(right / left)  # inches a decade
    per_y = box.height * figure[1] / math.log10(high / low)
    start, length = math.log10(ends[0]), math.log10(ends[1] / ends[0])

    def distance(x: float) -> float:
        """Inches to the nearest point or flat roof, as far as a name is long; of equals the first is taken."""
        gaps: list[float] = [abs(math.log10(flat / (value * x))) * per_y for flat in crossed]
        gaps += [math.hypot(math.log10(m.x / x) * per_x, math.log10(m.y / (value * x)) * per_y) for m in marks]
        return min([1.1, *gaps])

    at = max(
        (10 ** (start + f * length) for f in (0.42, 0.3, 0.36, 0.48, 0.55, 0.62, 0.68, 0.74, 0.8, 0.2)),
        key=distance,
    )
    axes.annotate(
        text, (at, value * at), xytext=(-3, 4), textcoords="offset points",
        rotation=math.degrees(math.atan2(per_y, per_x)), rotation_mode="anchor",
        ha="center", va="bottom", fontsize=8.5, color=INK, zorder=6, **_halo(),
    )  # fmt: skip


def _halo() -> dict[str, Any]:
    from matplotlib import patheffects

    return {"path_effects": [patheffects.withStroke(linewidth=2.5, foreground="white", alpha=0.85)]}


def _marks(points: Sequence[RooflinePoint], bounds: Sequence[float]) -> list[Mark]:
    """Colour by kind of operator, shape by variant: the variants of one operator are those of the same axes."""
    kinds = list(dict.fromkeys(p.op.kind for p in points))
    variants: dict[Any, list[tuple[str, str]]] = {}
    for p in points:
        variants.setdefault(p.op, []).append((p.implementation, p.context))
    found = []
    for number, p in enumerate(points, 1):
        among = variants[p.op]
        index = among.index((p.implementation, p.context))
        x = p.cost.intensity or bounds[0] * 1.25  # no FLOPs: at the left edge, as high as its bandwidth
        y = p.flops_per_s or p.bytes_per_s * x
        again, colour = divmod(kinds.index(p.op.kind), len(COLOURS))
        mark = MARKS[(index + NEXT_ROUND * again) % len(MARKS)]
        found.append(Mark(number, p, COLOURS[colour], mark, index == 0, len(among) == 1, x, y))
    return found


def _points(axes: Any, marks: Sequence[Mark], bounds: Sequence[float], crowd: Sequence[Mark]) -> None:
    """Marks, those of one operator joined, and their numbers; a crowd has its numbers in a view of its own."""
    for op in dict.fromkeys(m.point.op for m in marks):
        same = [m for m in marks if m.point.op == op]
        if len(same) > 1:
            axes.plot(
                [m.x for m in same], [m.y for m in same], color=same[0].colour, linewidth=1.1, alpha=0.7, zorder=4
            )
    for m in marks:
        m.draw(axes, m.x, m.y)
    numbered = [m for m in marks if m not in crowd]
    for m, (dx, dy) in zip(numbered, _offsets(axes, numbered, bounds)):
        leader = {"arrowstyle": "-", "color": m.colour, "linewidth": 0.6, "shrinkA": 4, "shrinkB": 3}
        axes.annotate(
            str(m.number), (m.x, m.y), xytext=(dx, dy), textcoords="offset points", ha="center", va="center",
            fontsize=7.5, color=m.colour, weight="bold", zorder=7,
            arrowprops=leader if math.hypot(dx, dy) > 11 else None, **_halo(),
        )  # fmt: skip


def _offsets(axes: Any, marks: Sequence[Mark], bounds: Sequence[float]) -> list[tuple[float, float]]:
    """Where each number stands, in points from its mark: the nearest free place, so that none covers another."""
    left, right, low, high = bounds
    box, inches = axes.get_position(), axes.figure.get_size_inches()
    width, height = box.width * inches[0] * 72, box.height * inches[1] * 72
    at = [
        (math.log(m.x / left) / math.log(right / left) * width, math.log(m.y / low) / math.log(high / low) * height)
        for m in marks
    ]
    taken: list[tuple[float, float, float]] = [(x, y, 4.5) for x, y in at]
    chosen = []
    ways = [(r * math.cos(a), r * math.sin(a)) for r in (9, 13, 18, 24, 31, 39, 48) for a in _ANGLES]
    for x, y in at:

        def crowding(way: tuple[float, float], x: float = x, y: float = y) -> float:
            px, py = x + way[0], y + way[1]
            outside = not (6 < px < width - 6 and 6 < py < height - 6)
            hits = sum(math.hypot((px - tx) / 1.25, py - ty) < r + 5 for tx, ty, r in taken)
            return 100 * outside + 10 * hits + math.hypot(*way) / 10

        best = min(ways, key=crowding)
        chosen.append(best)
        taken.append((x + best[0], y + best[1], 5.0))
    return chosen


_ANGLES = [math.radians(d) for d in (45, 90, 0, 135, 315, 180, 270, 225, 67, 22, 112, 157, 292, 337, 247, 202)]


def _list(figure: Any, marks: Sequence[Mark], box: tuple[float, ...], height: float, notes: Sequence[str]) -> None:
    """The names of the points beside the picture: number, operator, variant, time, share of its roof."""
    axes = figure.add_axes(box)
    axes.set(xlim=(0, 1), ylim=(height, 0))
    axes.axis("off")
    contexts = len({m.point.context for m in marks}) > 1
    head = {"fontsize": 8, "color": FAINT, "va": "center"}
    y = 0.62
    for x, text, ha in ((NAME, "operator", "left"), (VARIANT, "variant", "right"), (TIME, "P50", "right")):
        axes.text(x, y, text, ha=ha, **head)
    axes.text(1, y, "of roof", ha="right", **head)
    axes.plot([0, 1], [y + 0.14, y + 0.14], color=FAINT, linewidth=0.6)
    y += 0.32
    for m in marks:
        _list_row(axes, m, y, contexts)
        y += ROW
    for note in notes:
        axes.text(NAME, y + 0.06, note, fontsize=7.5, color=FAINT, va="center", style="italic")
        y += 0.17


NUMBER, MARK, NAME, VARIANT, TIME = 0.035, 0.06, 0.085, 0.76, 0.895


def _list_row(axes: Any, m: Mark, y: float, contexts: bool) -> None:
    p = m.point
    cell = {"fontsize": 8, "color": INK, "va": "center"}
    axes.text(NUMBER, y, str(m.number), ha="right", weight="bold", **{**cell, "color": m.colour})
    m.draw(axes, MARK, y, markersize=5, markeredgewidth=1.1, markeredgecolor=m.colour, alpha=1, clip_on=False)
    step = p.implementation.removeprefix(f"{p.op.kind}_")  # a step of a ladder is named after it
    variant = f"{step} {p.context}" if contexts else step
    room = 52 - len(variant)
    axes.text(NAME, y, p.label if len(p.label) <= room else p.label[: room - 1] + "…", **cell)
    axes.text(VARIANT, y, variant, ha="right", **{**cell, "color": FAINT})
    axes.text(TIME, y, duration(p.seconds), ha="right", **cell)
    axes.text(1, y, f"{p.share:.0%}" + ("*" if p.cached else ""), ha="right", **cell)


def _notes(marks: Sequence[Mark]) -> list[str]:
    notes = []
    if any(not m.alone for m in marks):
        notes.append("joined: variants of one operator, the first of them hollow")
    if any(m.point.cached for m in marks):
        notes.append("* faster than memory, so partly served from cache: share of that level's roof")
    if any(not m.point.cost.flops for m in marks):
        notes.append("operators without FLOPs stand at the left edge, as high as their bandwidth")
    return notes
