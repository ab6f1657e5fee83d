"""A page as one file: style, scripts and data inside, under a policy that allows those alone by their hashes.

Data is text to the page, whatever it holds: it lies in a block that no browser runs, with every `<` escaped, and the
scripts make text nodes of it, never markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

STATIC = Path(__file__).parent / "report" / "static"
ESCAPES = {
    ord(k): v
    for k, v in {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}.items()
}


@dataclass(frozen=True, slots=True)
class Page:
    text: str
    policy: str  # the same that its head names, for the header of an answer


def assemble(template: str, scripts: Sequence[str], data: str, title: str = "", more: str = "") -> Page:
    """`data` is JSON; `more` is what else the policy allows, such as "connect-src 'self'"."""
    style = (STATIC / "style.css").read_text(encoding="utf-8")
    script = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in scripts)
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        f"base-uri 'none'; form-action 'none'{'; ' if more else ''}{more}"
    )
    parts = {"policy": policy, "title": html.escape(title), "style": style, "script": script}
    parts["data"] = data.translate(ESCAPES)
    # each placeholder by itself, in the order of the page: what is put in is never searched for the next
    out, rest = "", (STATIC / template).read_text(encoding="utf-8")
    while rest:
        before, at, after = rest.partition("@")
        name, end, tail = after.partition("@")
        out, rest = (out + before + parts[name], tail) if at and end and name in parts else (out + before + at, after)
    return Page(out, policy)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
