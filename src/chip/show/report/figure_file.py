"""A picture into a file: what every plot does the same way."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chip.files import output
from chip.types import ChipError, install

SUFFIXES = ".png, .svg or .pdf"
SIGNATURE = "drawn by chip"
SIGNED = rf"<!-- {SIGNATURE}|\x89PNG.{{,99}}{SIGNATURE}|<\?xml.{{,2000}}{SIGNATURE}|%PDF.*% {SIGNATURE}\n\Z"
PICTURE = output.Kind("a picture", re.compile(SIGNED.encode(), re.DOTALL))
SIGNING: dict[str, dict[str, str | None]] = {
    "png": {"Software": SIGNATURE}, "svg": {"Creator": SIGNATURE, "Date": None}, "pdf": {}
}  # fmt: skip
INK, FAINT = "#222222", "#6b7280"  # of text and lines
SETTINGS = {"font.family": "DejaVu Sans", "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "chip"}


def output_of(path: Path | None, suffixes: str = SUFFIXES) -> output.Output:
    """Of an option --plot."""
    if path is not None and path.suffix not in re.findall(r"\.\w+", suffixes):
        raise ChipError(f"{path}: a plot is written as {suffixes}")
    return path, PICTURE


def save(path: Path, draw: Callable[[], Any]) -> None:
    """What `draw` returns, a matplotlib figure, as .png, .svg or .pdf. The same picture gives the same bytes. A .png
    carries the words on it: whether two show the same figures is told without their pixels."""
    try:
        import matplotlib
    except ImportError:
        raise ChipError(f"drawing needs matplotlib: {install('plot')}") from None
    matplotlib.use("Agg")
    with matplotlib.rc_context(SETTINGS):
        figure, drawn, kind = draw(), io.BytesIO(), path.suffix.removeprefix(".")
        words = {"Description": _words(figure)} if kind == "png" else {}
        figure.savefig(drawn, format=kind, dpi=150, facecolor="white", metadata={**SIGNING[kind], **words})
    signed = f"% {SIGNATURE}\n".encode() if kind == "pdf" else b""  # of its metadata nobody knows where they stand
    output.write(path, drawn.getvalue() + signed, PICTURE)


def _words(figure: Any) -> str:
    from matplotlib.text import Text

    return "\n".join(text for found in figure.findobj(Text) if (text := found.get_text()))
