"""A page as one file: style, scripts and data inside, under a policy that allows those alone by their hashes.

Data is text to the page, whatever it holds: it lies in a block that no browser runs, with every `<` escaped, and the
scripts make text nodes of it, never markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from chip.files import output

STATIC = Path(__file__).parent / "report" / "static"
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


PORT = 8471  # of the explorer, where it is not told another
KIND = output.Kind("a page", re.compile(rb'<!doctype html>\s.{,200}<meta name="generator" content="chip">', re.DOTALL))
EXPLORER = f"http://127.0.0.1:{PORT}/"
UNPACKED = """(async () => {{
const data = document.getElementById("data");
data.textContent = JSON.stringify(await Packed.open(data.textContent));
{}
}})();"""
CONNECT = "; connect-src 'self'"
WORKER = "; worker-src 'self'"


@dataclass(frozen=True, slots=True)
class Page:
    text: str
    policy: str  # the same that its head names, for the header of an answer


def assemble(
    template: str,
    scripts: Sequence[str],
    data: str,
    title: str = "",
    *,
    connect: bool = False,
    worker: bool = False,
    head: str = "",
    packed: bool = False,
) -> Page:
    """`data` is JSON. With `connect` the page may ask the server it came from, with `worker` it may start
    the one that lies beside it; `packed` data is compressed, and the scripts wait until it is not."""
    style = (STATIC / "style.css").read_text(encoding="utf-8")
    script = _scripts(scripts)
    if packed:
        data, script = pack(json.loads(data)), _scripts(["packed.js"]) + UNPACKED.format(script)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        f"img-src data:; base-uri 'none'; form-action 'none'{CONNECT if connect else ''}{WORKER if worker else ''}"
    )
    parts = {"policy": policy, "title": html.escape(title), "style": style, "script": script, "head": head}
    for character, escaped in ESCAPES.items():  # faster than `translate`
        data = data.replace(character, escaped)
    parts["data"] = data
    # each placeholder by itself, in the order of the page: what is put in is never searched for the next
    out, rest = "", (STATIC / template).read_text(encoding="utf-8")
    while rest:
        before, at, after = rest.partition("@")
        name, end, tail = after.partition("@")
        out, rest = (out + before + parts[name], tail) if at and end and name in parts else (out + before + at, after)
    return Page(out, policy)


def pack(value: Any) -> str:
    """JSON as gzip in base64, which any page can hold and `packed.js` opens; rows that are alike lie by column."""
    text = json.dumps(_by_column(value), separators=(",", ":"), allow_nan=False)
    gzip = zlib.compressobj(9, zlib.DEFLATED, 31)
    return base64.b64encode(gzip.compress(text.encode()) + gzip.flush()).decode()


def _by_column(value: Any) -> Any:
    """`{"$": [[names, column, ...], ...]}` in place of rows that follow each other with the same keys; lists of one
    length have no names."""
    if isinstance(value, dict):
        return {name: _by_column(each) for name, each in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > 1 and all(isinstance(row, dict) and row for row in value):
        return {"$": [[[*names], *_columns([row.values() for row in rows])] for names, rows in groupby(value, tuple)]}
    if len(value) > 1 and all(isinstance(row, list) and row and len(row) == len(value[0]) for row in value):
        return {"$": [[None, *_columns(value)]]}
    return [_by_column(each) for each in value]


def _columns(rows: Iterable[Iterable[Any]]) -> list[Any]:
    return [_by_column(list(column)) for column in zip(*rows)]


def rounded(value: Any, digits: int) -> Any:
    """JSON whose numbers have so many digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {name: rounded(each, digits) for name, each in value.items()}
    return [rounded(each, digits) for each in value] if isinstance(value, list) else value


def _scripts(names: Iterable[str]) -> str:
    return "\n".join((STATIC / name).read_text(encoding="utf-8") for name in names)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
