"""What benchmarking clients write of a run against a server, one file each, found by listing this folder.

A module has NAME, what a user calls the client, and `results(rows, path)`: the runs in a file, or None where the file
is of another client. `rows` are the documents in it, one of a JSON file, one a line of JSON Lines.
"""

from __future__ import annotations

import json
import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any

from chip.files import artifact
from chip.types import ChipError
from chip.validate.client_result import ClientResult


def names() -> dict[str, str]:
    """What the clients are called, by module."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return {name: import_module(f"{__name__}.{name}").NAME for name in modules}


def read(path: Path) -> tuple[ClientResult, ...]:
    """The runs in a file of any of them."""
    rows = documents(path)
    for module in names():
        found = import_module(f"{__name__}.{module}").results(rows, path)
        if found is not None:
            if not found:
                raise ChipError(f"{path}: holds no run that was answered")
            return tuple(found)
    raise ChipError(f"{path}: is no result of {', '.join(names().values())}")


def is_foreign(path: Path) -> bool:
    """Whether a file is JSON, and no artifact of chip's own."""
    if not path.is_file():
        return False
    first = documents(path)[0]
    return not (isinstance(first, dict) and str(first.get("schema", "")).startswith("chip."))


def documents(path: Path) -> list[Any]:
    """JSON, or JSON Lines. These tools write Infinity for a rate without limit, and NaN for a figure of nothing."""
    if not path.is_file():
        raise ChipError(f"{path}: no such file")
    text = artifact.read_packed(path)
    decoder = json.JSONDecoder(parse_constant=lambda word: float("inf") if word == "Infinity" else None)
    rows, at = [], 0
    try:
        while (begin := _next(text, at)) < len(text):
            value, at = decoder.raw_decode(text, begin)
            rows.append(value)
    except (json.JSONDecodeError, RecursionError, ValueError):
        where = f"line {text.count(chr(10), 0, at) + 1 + bool(rows)}" if rows else "its first document"
        raise ChipError(f"{path}: is not JSON or is cut short ({where})") from None
    if not rows:
        raise ChipError(f"{path}: is empty")
    return rows


def _next(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at
