"""One row for each combination of the options that take several values."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from chip import api
from chip.dtypes import AUTO
from chip.files import output
from chip.predictor.basis import NOT_USABLE
from chip.question import DEFAULTS
from chip.show.cli.text import Column, amount, digits, gib, ms, span, table, yes
from chip.types import ChipError

MOST_ROWS = 10_000
TIMES = ("ttft_", "tpot_", "e2e_")
NAMED = 3  # rows that a note names one by one
TABLE = output.Kind("a table of `chip predict`", re.compile(f"model,{next(iter(DEFAULTS))},".encode()))
COLUMNS: tuple[Column, ...] = (
    *((name, name) for name in ("model", *DEFAULTS)), ("TTFT", "ttft_ms", ms),
    ("TTFT 90 %", lambda row: _span(row, "ttft")), ("TPOT", "tpot_ms", ms),
    ("TPOT 90 %", lambda row: _span(row, "tpot")), ("end to end", "e2e_ms", ms), ("tok/s", "tokens_per_s", amount),
    ("J/tok", "energy_j_per_token", digits(3)), ("memory", "memory_bytes", gib),
    ("fits", lambda row: yes(row["fits"])),
)  # fmt: skip


def rows(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """As `chip.sweep` gives them. Where no row could be predicted, the first reason is the command's error."""
    if prod(len(values[name]) for name in DEFAULTS) > MOST_ROWS:
        raise ChipError(f"more than {MOST_ROWS} combinations; for sweeps of any size: `chip predict -`")
    question = dict(values)
    launch_s = question.pop("launch_ns", 0.0) * 1e-9
    answers = api.sweep(**question, launch_s=launch_s)
    if all("error" in row for row in answers):
        raise ChipError(answers[0]["error"])
    return [_in_ms(row) for row in answers]


def _in_ms(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as the command line has it, with times in milliseconds."""
    out = dict[str, Any]()
    for name, value in row.items():
        if name.startswith(TIMES):
            out[name.removesuffix("_s") + "_ms"] = None if value is None else value * 1e3
        else:
            out[name] = value
    return out


def render(answers: Sequence[Mapping[str, Any]]) -> str:
    """A table; above it the notes, with the rows they are of, and the reasons of rows that could not be predicted."""
    errors = [f"not predicted: {_asked(row, answers)}: {row['error']}" for row in answers if "error" in row]
    head = [*notes(answers), *errors]
    done = [row for row in answers if "error" not in row]
    return "\n".join([*head, *([""] if head else []), table(done, COLUMNS, keep=_varying(answers))])


def notes(answers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each once, after the rows it is of, where it is not of all."""
    of_note: dict[str, list[Mapping[str, Any]]] = {}
    for row in answers:
        for note in filter(None, row.get("notes", "").split("\n")):
            of_note.setdefault(note, []).append(row)
    return [f"note: {_rows(rows, answers)}{note}" for note, rows in of_note.items()]


def _rows(mine: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]) -> str:
    """Which rows these are of those found, by one axis where that tells them apart; "" for all."""
    others = [row for row in answers if row not in mine and "error" not in row]
    if not others:
        return ""
    for axis in _varying(answers):
        values = dict.fromkeys(row[axis] for row in mine)
        if not any(row[axis] in values for row in others):
            return f"{axis} {', '.join(map(str, values))}: "
    more = f" and {len(mine) - NAMED} more" if len(mine) > NAMED else ""
    return f"{'; '.join(_asked(row, answers) for row in mine[:NAMED])}{more}: "


def _varying(answers: Sequence[Mapping[str, Any]]) -> list[str]:
    """The axes with several values. Rows without figures do not tell what `auto` came to."""
    return [k for k in DEFAULTS if len({str(row[k]) for row in answers} - {AUTO}) > 1]


def _asked(row: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{k} {row[k]}" for k in _varying(answers))


def _span(row: Mapping[str, Any], metric: str) -> str | None:
    if NOT_USABLE in str(row["notes"]):
        return NOT_USABLE
    ends = [row[f"{metric}_{end}_ms"] for end in ("low", "high")]
    return None if row[f"{metric}_ms"] is None else span(ms)(ends)


def to_csv(answers: Sequence[Mapping[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in answers for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({k: v.replace("\n", "; ") if isinstance(v, str) else v for k, v in row.items()} for row in answers)
    return out.getvalue()
