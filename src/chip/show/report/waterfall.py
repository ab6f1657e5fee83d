"""The account of a step as a picture: from the sum of its kernels run alone to the time of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chip.show.report import figure_file
from chip.show.report.figure_file import INK

TOTAL, MORE, LESS, UNKNOWN = "#0072B2", "#D55E00", "#009E73", "#7F7F7F"
HOST_FITS = 1.3  # times the step as a graph


def save(path: Path, report: dict[str, Any]) -> None:
    """Draw into a .png, .svg or .pdf file."""
    figure_file.save(path, lambda: _draw(report))


def _draw(report: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    rows, below = _drawn(report["breakdown"])
    figure = Figure(figsize=(8.5, 0.9 + 0.36 * len(rows)), layout="constrained")
    axes = figure.subplots()
    whole = next((r["us"] for r in rows if r.get("total")), 0.0) or 1.0
    low, high = _span(rows)
    at = 0.0
    for y, row in enumerate(rows):
        begin, end = (0.0, row["us"]) if row.get("total") else (at, at + row["us"])
        axes.barh(y, end - begin, left=begin, height=0.62, color=_colour(row))
        if y + 1 < len(rows):
            axes.plot([end, end], [y, y + 1], color=INK, linewidth=0.6, linestyle=":")
        text = f"{row['us']:.1f}" if row.get("total") else f"{row['us']:+.1f}  ({100 * row['us'] / whole:+.1f} %)"
        axes.text(max(begin, end) + 0.01 * (high - low), y, text, va="center", color=INK)
        at = end
    axes.set_yticks(range(len(rows)), [r["label"] for r in rows])
    axes.invert_yaxis()
    axes.set_xlim(low, high + 0.25 * (high - low))  # with room for the numbers
    axes.set_xlabel("us" if not low else "us; the axis does not begin at 0")
    axes.spines[["top", "right"]].set_visible(False)
    error = report["error_percent"]
    summed = "" if error is None else f"\nits kernels and the gaps between them, against the step: {error:+.1f} %"
    axes.set_title(f"{report['title']} on {report['device']}{summed}{below}", loc="left", fontsize=10)
    return figure


def _drawn(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The rows that fit one scale, and in words what does not: a host that takes longer than all kernels."""
    graph = next((i for i, r in enumerate(rows) if r["term"] == "full_model"), len(rows) - 1)
    if graph == len(rows) - 1 or rows[-1]["us"] < HOST_FITS * rows[graph]["us"]:
        return rows, ""
    return rows[: graph + 1], f"\nlaunched by the host, it takes {rows[-1]['us'] / 1e3:.2f} ms"


def _span(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """What the axis shows: from below the lowest level that the account comes to."""
    levels, at = [], 0.0
    for row in rows:
        at = row["us"] if row.get("total") else at + row["us"]
        levels.append(at)
    low, high = min(levels), max(levels)
    below = low - max(0.25 * (high - low), 0.01 * high)
    return below if below > 0.3 * high else 0.0, high or 1.0


def _colour(row: dict[str, Any]) -> str:
    if row.get("total") or row["term"] == "isolated":
        return TOTAL
    if row["term"] == "unexplained":
        return UNKNOWN
    return MORE if row["us"] >= 0 else LESS
