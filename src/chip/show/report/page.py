"""The report's page: one HTML file that opens from disk and asks nobody."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from chip.files import output
from chip.show import webpage
from chip.show.report.columns import SCHEMA
from chip.show.report.summary import Summary

MOST_ROWS = 50_000  # of one table
DIGITS = 7  # of a number in packed data: more than any clock or meter gives
CSV = output.Kind("a summary", re.compile(b"table,name,value,"))
FILES: dict[str, output.Kind | str] = {"index.html": webpage.KIND, "summary.json": SCHEMA, "summary.csv": CSV}
SCRIPTS = (
    "elements.js", "plots.js", "bars.js", "tables.js", "pieces.js",
    "strips.js", "accuracy.js", "roofline.js", "calibration.js", "results.js", "report.js",
)  # fmt: skip


def render(summary: Summary, explorer: str = "") -> str:
    """`explorer` is the page of a site that stands beside this one: then no file of the data does."""
    shown = {**_shown(summary), "explorer": explorer or webpage.EXPLORER, "alone": bool(explorer)}
    data = json.dumps(webpage.rounded(shown, DIGITS), separators=(",", ":"), allow_nan=False)
    return webpage.assemble("report.html", SCRIPTS, data, summary.title, packed=True).text


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
    output.write(index, render(summary, explorer), webpage.KIND)
    return index


def write(folder: Path, summary: Summary) -> Path:
    """`index.html`, `summary.json` and `summary.csv`; the page last, so that it never stands beside older figures."""
    index = folder / "index.html"
    output.write(folder / "summary.json", summary.json(), SCHEMA)
    output.write(folder / "summary.csv", summary.csv(), CSV)
    output.write(index, render(summary), webpage.KIND)
    return index
