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
    """What `draw` returns, a matplotlib figure, as .png, .svg or .pdf. The same picture gives the same bytes. A .png
    carries the words on it: whether two show the same figures is told without their pixels."""
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
            about = {".svg": {"Date": None}, ".png": {"Description": _words(figure)}}.get(path.suffix)
            figure.savefig(path, dpi=150, facecolor="white", metadata=about)
        except OSError as e:
            raise ChipError(f"{path}: cannot be written ({e.strerror})") from None


def _words(figure: Any) -> str:
    from matplotlib.text import Text

    return "\n".join(text for found in figure.findobj(Text) if (text := found.get_text()))
