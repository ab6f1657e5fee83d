"""A picture into a file: what every plot does the same way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from chip import output
from chip.types import ChipError

SUFFIXES = (".png", ".svg", ".pdf")
INK, FAINT = "#222222", "#6b7280"  # of text and lines
SETTINGS = {"font.family": "DejaVu Sans", "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "chip"}


def check(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise ChipError(f"{path}: a plot is written as .png, .svg or .pdf")
    output.plain(path)


def save(path: Path, draw: Callable[[], Any]) -> None:
    """What `draw` returns, a matplotlib figure, as .png, .svg or .pdf. The same picture gives the same bytes."""
    check(path)
    try:
        import matplotlib
    except ImportError:
        raise ChipError("drawing needs matplotlib: pip install 'chip-inference[plot]'") from None
    matplotlib.use("Agg")
    with matplotlib.rc_context(SETTINGS):
        figure = draw()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=150, facecolor="white", metadata={"Date": None} if path.suffix == ".svg" else None)
        except OSError as e:
            raise ChipError(f"{path}: cannot be written ({e.strerror})") from None
