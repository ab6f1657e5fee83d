"""A page as one file: style, scripts and data inside, under a policy that allows those alone by their hashes.

Data is text to the page, whatever it holds: it lies in a block that no browser runs, with every `<` escaped, and the
scripts make text nodes of it, never markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from chip import output
from chip.records import dataclass

STATIC = Path(__file__).parent / "report" / "static"
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


PORT = 8471  # of the explorer, where it is not told another
KIND = output.Kind("a page", re.compile(rb'<!doctype html>\s.{,200}<meta name="generator" content="chip">', re.DOTALL))
EXPLORER = f"http://127.0.0.1:{PORT}/"
UNPACKED = """(async () => {{
const held = document.getElementById("data"), bytes = Uint8Array.from(atob(held.textContent), (c) => c.charCodeAt(0));
held.textContent = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
{}
}})();"""
CONNECT = "; connect-src 'self'"
BESIDE = " 'self' file:"


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
    beside: bool = False,
    packed: bool = False,
) -> Page:
    """`data` is JSON. With `connect` the page may ask the server it came from, with `beside` it may load scripts that
    lie beside it, on a host or on disk; `packed` data is compressed, and the scripts wait until it is not."""
    style = (STATIC / "style.css").read_text(encoding="utf-8")
    script = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in scripts)
    if packed:
        data, script = pack(data), UNPACKED.format(script)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'{BESIDE if beside else ''}; style-src '{_hash(style)}'; "
        f"img-src data:; base-uri 'none'; form-action 'none'{CONNECT if connect else ''}"
    )
    parts = {"policy": policy, "title": html.escape(title), "style": style, "script": script}
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


def pack(text: str) -> str:
    """gzip in base64, which any page can hold and inflate."""
    gzip = zlib.compressobj(9, zlib.DEFLATED, 31)
    return base64.b64encode(gzip.compress(text.encode()) + gzip.flush()).decode()


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
