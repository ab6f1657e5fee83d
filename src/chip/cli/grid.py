"""Grids on the command line: options that take several values with commas, and one row for each combination."""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from chip import api, output
from chip.cli.text import duration, gib, number, table
from chip.dtypes import AUTO
from chip.question import DEFAULTS
from chip.types import ChipError

MOST_ROWS = 10_000
NAMED = 3  # rows that a note names one by one
TABLE = output.Kind("a table of `chip predict`", re.compile(f"model,{next(iter(DEFAULTS))},".encode()))
NUMBERS = ("batch", "prompt", "output", "tp", "pp", "ep", "TTFT", "TPOT", "end to end", "tok/s", "J/tok", "memory")


class Several:
    """An argparse type: one value, or several with commas, as a list."""

    once = "several values go into one option, with commas"

    def __init__(self, kind: Callable[[str], Any]) -> None:
        self.kind = kind

    def __call__(self, text: str) -> list[Any]:
        words = [text] if os.path.isfile(text) else text.split(",")  # a file's name may have a comma
        if len(words) > 1 and not all(words):
            raise argparse.ArgumentTypeError(f"an empty value between commas in {text[:80]!r}")
        values = [self._value(word) for word in words]
        if twice := [v for i, v in enumerate(values) if v in values[:i]]:
            raise argparse.ArgumentTypeError(f"{twice[0]} is there twice")
        return values

    def _value(self, word: str) -> Any:
        try:
            return self.kind(word)
        except ValueError:
            raise argparse.ArgumentTypeError(f"invalid {self.kind.__name__} value: {word[:80]!r}") from None


def rows(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """As `chip.sweep` gives them. Where no row could be predicted, the first reason is the command's error."""
    if prod(len(values[name]) for name in DEFAULTS) > MOST_ROWS:
        raise ChipError(f"more than {MOST_ROWS} combinations; for sweeps of any size: `chip predict -`")
    axes = {name: values[name] for name in DEFAULTS}  # rows come in this order
    found = api.sweep(**{**axes, **values})
    if all("error" in row for row in found):
        raise ChipError(found[0]["error"])
    return found


def render(found: Sequence[Mapping[str, Any]]) -> str:
    """A table; above it the notes, with the rows they are of, and the reasons of rows that could not be predicted."""
    errors = [f"not predicted: {_asked(row, found)}: {row['error']}" for row in found if "error" in row]
    head = [*notes(found), *errors]
    shown = [_shown(row) for row in found if "error" not in row]
    return "\n".join(
        [*head, *([""] if head else []), table(shown, NUMBERS, keep=(*_varying(found), "TTFT", "TPOT", "tok/s"))]
    )


def notes(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each once, after the rows it is of, where it is not of all."""
    of_note: dict[str, list[Mapping[str, Any]]] = {}
    for row in found:
        for note in filter(None, row.get("notes", "").split("\n")):
            of_note.setdefault(note, []).append(row)
    return [f"note: {_rows(rows, found)}{note}" for note, rows in of_note.items()]


def _rows(mine: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any]]) -> str:
    """Which rows these are of those found, by one axis where that tells them apart; "" for all."""
    others = [row for row in found if row not in mine and "error" not in row]
    if not others:
        return ""
    for axis in _varying(found):
        values = dict.fromkeys(row[axis] for row in mine)
        if not any(row[axis] in values for row in others):
            return f"{axis} {', '.join(map(str, values))}: "
    more = f" and {len(mine) - NAMED} more" if len(mine) > NAMED else ""
    return f"{'; '.join(_asked(row, found) for row in mine[:NAMED])}{more}: "


def _varying(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The axes with several values. Rows without figures do not tell what `auto` came to."""
    return [k for k in DEFAULTS if len({str(row[k]) for row in found} - {AUTO}) > 1]


def _asked(row: Mapping[str, Any], found: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{k} {row[k]}" for k in _varying(found))


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    energy, tpot = row["energy_j_per_token"], row["tpot_ms"]
    return {
        **{k: row[k] for k in ("model", *DEFAULTS)},
        "TTFT": duration(row["ttft_ms"] / 1e3),
        "TTFT 90 %": _span(row, "ttft"),
        "TPOT": "-" if tpot is None else duration(tpot / 1e3),
        "TPOT 90 %": "-" if tpot is None else _span(row, "tpot"),
        "end to end": duration(row["e2e_ms"] / 1e3),
        "tok/s": number(row["tokens_per_s"], 4),
        "J/tok": "-" if energy is None else f"{energy:.3g}",
        "memory": gib(row["memory_bytes"]),
        "fits": "yes" if row["fits"] else "NO",
    }


def _span(row: Mapping[str, Any], metric: str) -> str:
    return f"{duration(row[metric + '_low_ms'] / 1e3)} - {duration(row[metric + '_high_ms'] / 1e3)}"


def to_json(found: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(found, indent=1, allow_nan=False)


def to_csv(found: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in found for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({k: v.replace("\n", "; ") if isinstance(v, str) else v for k, v in row.items()} for row in found)
    return out.getvalue()
