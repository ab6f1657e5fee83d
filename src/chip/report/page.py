"""The page: one HTML file with its style, its script and its data inside, that opens from disk and asks nobody.

Data is text to the page, whatever it holds: it lies in a block that no browser runs, with every `<` escaped, and the
script makes text nodes of it, never markup. The policy names the hashes of the one style and the one script.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
from pathlib import Path
from typing import Any

from chip import artifact, output
from chip.report.columns import SCHEMA
from chip.report.summary import Summary
from chip.types import ChipError

STATIC = Path(__file__).parent / "static"
MOST_ROWS = 50_000  # of one table
SCRIPTS = (
    "elements.js", "plots.js", "bars.js", "tables.js", "pieces.js",
    "strips.js", "accuracy.js", "roofline.js", "calibration.js", "results.js", "report.js",
)  # fmt: skip
ESCAPES = {
    ord(k): v
    for k, v in {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}.items()
}


def render(summary: Summary) -> str:
    style = (STATIC / "style.css").read_text(encoding="utf-8")
    script = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in SCRIPTS)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    data = json.dumps(_shown(summary), separators=(",", ":"), allow_nan=False).translate(ESCAPES)
    parts = {"policy": policy, "title": html.escape(summary.title), "style": style, "script": script, "data": data}
    # each placeholder by itself, in the order of the page: what is put in is never searched for the next
    out, rest = "", (STATIC / "report.html").read_text(encoding="utf-8")
    while rest:
        before, at, after = rest.partition("@")
        name, end, tail = after.partition("@")
        out, rest = (out + before + parts[name], tail) if at and end and name in parts else (out + before + at, after)
    return out


def _shown(summary: Summary) -> dict[str, Any]:
    """The summary, less the rows of a table that would make the page too slow; it says how many."""
    found = summary.document()
    for table in found["tables"].values():
        table["left_out"] = max(0, len(table["rows"]) - MOST_ROWS)
        del table["rows"][MOST_ROWS:]
    return found


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


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
