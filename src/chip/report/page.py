"""The report's page: one HTML file that opens from disk and asks nobody."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from chip import artifact, output, webpage
from chip.report.columns import SCHEMA
from chip.report.summary import Summary
from chip.types import ChipError

MOST_ROWS = 50_000  # of one table
DIGITS = 7  # of a number in packed data: more than any clock or meter gives
SCRIPTS = (
    "elements.js", "plots.js", "bars.js", "tables.js", "pieces.js",
    "strips.js", "accuracy.js", "roofline.js", "calibration.js", "results.js", "report.js",
)  # fmt: skip


def render(summary: Summary, explorer: str = "") -> str:
    """`explorer` is the page of a site that stands beside this one: then the data is packed, and no file of it is."""
    shown = {**_shown(summary), "explorer": explorer or webpage.EXPLORER, "alone": bool(explorer)}
    if explorer:
        shown = webpage.rounded(shown, DIGITS)
    data = json.dumps(shown, separators=(",", ":"), allow_nan=False)
    return webpage.assemble("report.html", SCRIPTS, data, summary.title, packed=bool(explorer)).text


def _shown(summary: Summary) -> dict[str, Any]:
    """The summary, less the rows of a table that would make the page too slow; it says how many."""
    found = summary.document()
    for table in found["tables"].values():
        table["left_out"] = max(0, len(table["rows"]) - MOST_ROWS)
        del table["rows"][MOST_ROWS:]
    return found


def write_packed(folder: Path, summary: Summary, explorer: str) -> Path:
    """`index.html` alone, of a site."""
    index = folder / "index.html"
    artifact.write_text(index, render(summary, explorer))
    return index


def write(folder: Path, summary: Summary) -> Path:
    """`index.html`, `summary.json` and `summary.csv`; the page last, so that it never stands beside older figures."""
    index = folder / "index.html"
    output.check(folder / "summary.json", SCHEMA)
    if os.path.exists(index) and not os.path.exists(folder / "summary.json"):
        raise ChipError(f"{index}: is there already and was not written by chip; choose another folder with -o")
    artifact.write_text(folder / "summary.json", summary.json())
    artifact.write_text(folder / "summary.csv", summary.csv())
    artifact.write_text(index, render(summary))
    return index
