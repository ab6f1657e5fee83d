"""Predicted against measured as a picture: log-log, a panel for each metric, the line where both are equal. Colour
tells the engine, a full mark that the device was the limit, a hollow one that the host was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chip.show.report import figure_file
from chip.show.report.figure_file import FAINT, INK
from chip.units import duration, percent, si
from chip.validate.points import GPU, HOST, METRICS, UNKNOWN, Point, summarise

# Okabe and Ito's palette, told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8C6D00", "#56B4E9", "#000000")
MARKS = ("o", "s", "^", "D", "v", "P", "X")
BAND = "#e5e7eb"
NEAR = 0.10  # the shaded band around equality
TITLES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "tokens_per_s": "output tokens per second",
    "joules_per_token": "joules per output token",
    "memory": "peak memory",
    "device_memory": "memory of the whole device",
    "kv_cache_tokens": "tokens in the KV pool",
}
BOUNDS = {GPU: "GPU-bound", HOST: "host-bound", UNKNOWN: "limit not known"}
PANEL, GAP = 4.2, 1.05  # inches


def save(path: Path, points: Sequence[Point], title: str) -> None:
    """Draw into a .png or .svg (or .pdf) file."""
    figure_file.save(path, lambda: _draw(points, title))


def _draw(points: Sequence[Point], title: str) -> Any:
    from matplotlib.figure import Figure

    metrics = [m for m in TITLES if any(p.metric == m for p in points)]
    columns = 2 if len(metrics) in (2, 4) else min(len(metrics), 3)
    rows = math.ceil(len(metrics) / columns)
    width, height = columns * (PANEL + GAP) + 0.2, rows * (PANEL + GAP) + 1.0
    figure = Figure(figsize=(width, height))
    engines = list(dict.fromkeys((p.engine, p.variant) for p in points))
    for i, metric in enumerate(metrics):
        left = 0.95 + (i % columns) * (PANEL + GAP)
        bottom = height - 0.95 - (i // columns) * (PANEL + GAP) - PANEL
        axes = figure.add_axes((left / width, bottom / height, PANEL / width, PANEL / height))
        _panel(axes, [p for p in points if p.metric == metric], metric, engines)
    figure.text(0.95 / width, 1 - 0.35 / height, title, fontsize=12.5, weight="bold", color=INK)
    figure.text(0.95 / width, 1 - 0.58 / height, _subtitle(points), fontsize=9, color=FAINT)
    _legend(figure, points, engines)
    return figure


def _subtitle(points: Sequence[Point]) -> str:
    models = len({p.model for p in points})
    return (
        f"{len({p.run for p in points})} runs of {models} model{'s' if models > 1 else ''}; bars: 90 % interval; "
        f"band: {NEAR:.0%} to either side"
    )


def _panel(axes: Any, points: Sequence[Point], metric: str, engines: Sequence[tuple[str, str]]) -> None:
    values = [v for p in points for v in (p.predicted, p.measured)]
    low, high = min(values) / 1.6, max(values) * 1.6
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.fill_between([low, high], [low / (1 + NEAR), high / (1 + NEAR)], [low * (1 + NEAR), high * (1 + NEAR)],
                      color=BAND, linewidth=0, zorder=0)  # fmt: skip
    axes.plot([low, high], [low, high], color=INK, linewidth=0.9, zorder=1)
    for p in points:
        at = engines.index((p.engine, p.variant))
        colour = COLOURS[at % len(COLOURS)]
        if p.low is not None and p.high is not None:
            axes.plot([p.measured] * 2, [p.low, p.high], color=colour, linewidth=0.8, alpha=0.45, zorder=2)
        axes.plot(p.measured, p.predicted, zorder=3, **_mark(at, p.bound if METRICS[metric].phase else GPU))
    axes.set_title(f"{TITLES[metric]}: median error {percent(summarise(points).median)}", fontsize=9.5, color=INK)
    axes.set_xlabel("measured", color=INK)
    axes.set_ylabel("predicted", color=INK)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda v, _: _value(metric, v))
        if high / low < 30:  # under a decade and a half the powers of ten alone say too little
            axis.set_minor_formatter(lambda v, _: _value(metric, v) if _leading(v) in (2, 5) else "")
        else:
            axis.set_minor_formatter(lambda v, _: "")
    axes.tick_params(which="both", color=FAINT, labelcolor=INK, labelsize=8)
    axes.grid(True, which="major", color="#d1d5db", linewidth=0.5, zorder=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _leading(value: float) -> int:
    return int(value / 10 ** math.floor(math.log10(value) + 1e-9) + 0.5)


def _value(metric: str, value: float) -> str:
    unit = METRICS[metric].unit
    return duration(value) if unit == "s" else si(value, unit)


def _mark(at: int, bound: str) -> dict[str, Any]:
    colour = COLOURS[at % len(COLOURS)]
    face = {GPU: colour, HOST: "white", UNKNOWN: "#9ca3af"}[bound]
    return {
        "marker": MARKS[at % len(MARKS)],
        "markersize": 5.5,
        "markerfacecolor": face,
        "markeredgecolor": colour,
        "markeredgewidth": 1.1,
        "linestyle": "",
    }


def _legend(figure: Any, points: Sequence[Point], engines: Sequence[tuple[str, str]]) -> None:
    from matplotlib.lines import Line2D

    timed = [p for p in points if METRICS[p.metric].phase]
    handles = [Line2D([], [], **_mark(at, GPU), label=" ".join(filter(None, name))) for at, name in enumerate(engines)]
    for bound, title in BOUNDS.items():
        if any(p.bound == bound for p in timed):
            handles.append(Line2D([], [], **{**_mark(len(COLOURS) - 1, bound), "marker": "o"}, label=title))
    figure.legend(handles=handles, loc="lower center", ncol=min(len(handles), 6), frameon=False, fontsize=9)
