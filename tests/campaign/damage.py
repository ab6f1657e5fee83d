"""Damage to texts, values and files, as strangers, editors and disks do it."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, 10**30, 1.5, -0.0, 1e308, 5e-324, "", "0", "nan", "a" * 300,
    "\x1b[31m", "\udcff", "../../etc/passwd", "/dev/null", "null\0byte", [], {}, [[]], {"": {}}, [None] * 100,
)  # fmt: skip
BYTES = (
    b"", b"\0", b"\xff", b"{", b"}", b"[", b'"', b",", b"1e999", b"NaN", b"-", b"9" * 50, b"\\ud800", b"\n", b"[" * 300,
)  # fmt: skip


def damaged_value(value: Any, draw: Random) -> Any:
    """A deep copy with one thing changed: a value, a key, or something left out."""
    return damage(copy.deepcopy(value), draw)


def damage(out: Any, draw: Random) -> Any:
    """The same to the value itself."""
    places = list(_places(out))
    if not places:
        return draw.choice(VALUES)
    holder, key = draw.choice(places)
    how = draw.randrange(4)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        holder[draw.choice(("", "x" * 100, "batch", "op", "\0", str(key) + "s"))] = holder.pop(key)
    elif how == 2:
        holder[key] = [holder[key]]
    else:
        holder[key] = copy.deepcopy(draw.choice(VALUES))  # it may be damaged in turn
    return out


def _places(value: Any, most: int = 2000) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo and len(found) < most:
        here = todo.pop()
        items = here.items() if isinstance(here, dict) else enumerate(here) if isinstance(here, list) else ()
        for key, inner in items:
            found.append((here, key))
            todo.append(inner)
    return found


def damaged_text(text: str, draw: Random) -> str:
    return damaged_bytes(text.encode("utf-8", "surrogatepass"), draw).decode("utf-8", "replace")


def damaged_bytes(data: bytes, draw: Random) -> bytes:
    """Cut, overwritten, doubled or with something put in."""
    at = draw.randrange(len(data) + 1)
    end = min(len(data), at + draw.choice((0, 1, 1, 2, 8, 100)))
    how = draw.randrange(5)
    if how == 0:
        return data[:at]
    if how == 1:
        return data[:at] + data[end:]
    if how == 2:
        return data[:at] + draw.choice(BYTES) + data[end:]
    if how == 3:
        return data[:end] + data[at:]
    return data[:at] + bytes(draw.randrange(256) for _ in range(end - at)) + data[end:]
