"""The account of a step as a picture: from the sum of its kernels run alone to the time of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chip.report import figure_file

TOTAL, MORE, LESS, UNKNOWN = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"
INK = "#222222"


def save(path: Path, report: dict[str, Any]) -> None:
    """Draw into a .png, .svg or .pdf file."""
    figure_file.save(path, lambda: _draw(report))


def _draw(report: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    rows = report["breakdown"]
    figure = Figure(figsize=(8.5, 0.5 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    at = 0.0
    widest = max(abs(r["us"]) for r in rows) or 1.0
    for y, row in enumerate(rows):
        begin, end = (0.0, row["us"]) if row.get("total") else (at, at + row["us"])
        axes.barh(y, end - begin, left=begin, height=0.62, color=_colour(row))
        if y + 1 < len(rows):
            axes.plot([end, end], [y, y + 1], color=INK, linewidth=0.6, linestyle=":")
        label = f"{row['us']:.1f}" if row.get("total") else f"{row['us']:+.1f}"
        axes.text(max(begin, end) + 0.01 * widest, y, label, va="center", color=INK)
        at = end
    axes.set_yticks(range(len(rows)), [r["label"] for r in rows])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("us")
    axes.spines[["top", "right"]].set_visible(False)
    error = report["error_percent"]
    summed = f"\nkernels alone, with gaps, against the step: {error:+.1f} %" if error is not None else ""
    axes.set_title(f"{report['title']} on {report['device']}{summed}", loc="left", fontsize=10)
    return figure


def _colour(row: dict[str, Any]) -> str:
    if row.get("total") or row["term"] == "isolated":
        return TOTAL
    if row["term"] == "unexplained":
        return UNKNOWN
    return MORE if row["us"] >= 0 else LESS
