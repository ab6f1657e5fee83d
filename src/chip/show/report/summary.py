"""A summary: the tables of `columns`, filled from artifacts. Every figure on the page is one of its values."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from chip import __version__
from chip.files.runs import Run
from chip.show.report.columns import SCHEMA, TABLES, all_columns
from chip.types import HardwareProfile

LONGEST_TEXT = 2000
WHOLE = 2**53  # beyond it a browser cannot hold every whole number
Value = str | int | float | bool | None


@dataclass
class Summary:
    title: str = ""
    tables: dict[str, list[dict[str, Value]]] = field(default_factory=lambda: {name: [] for name in TABLES})
    profiles: dict[str, HardwareProfile] = field(default_factory=dict)  # the first of each device, not written
    runs: list[tuple[str, Run]] = field(default_factory=list)  # (file, run), to compare; not written

    def add(self, table: str, **values: Any) -> None:
        """One row; columns left out are empty."""
        row = dict(_empty(table))
        unknown = values.keys() - row.keys()
        assert not unknown, f"{table} has no column {unknown}"
        row.update([(name, _plain(value)) for name, value in values.items() if value is not None])
        self.tables[table].append(row)

    def rows(self, table: str, **equal: Any) -> Iterator[dict[str, Value]]:
        for row in self.tables[table]:
            if all(row[k] == v for k, v in equal.items()):
                yield row

    def document(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "chip": __version__,
            "title": self.title,
            "tables": {
                name: {
                    "columns": [c.name for c in columns],
                    "units": [c.unit for c in columns],
                    "rows": [list(row.values()) for row in self.tables[name]],
                }
                for name, columns in TABLES.items()
            },
        }

    def json(self) -> str:
        return json.dumps(self.document(), separators=(",", ":"), allow_nan=False) + "\n"

    def csv(self) -> str:
        out, columns = io.StringIO(), all_columns()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(columns)
        for name, rows in self.tables.items():
            places = [columns.index(c.name) for c in TABLES[name]]
            for row in rows:
                cells: list[Value] = [name, *[None] * (len(columns) - 1)]
                for place, value in zip(places, row.values()):
                    cells[place] = _cell(value)
                writer.writerow(cells)
        return out.getvalue()


@cache
def _empty(table: str) -> dict[str, Value]:
    return {c.name: None for c in TABLES[table]}


def _plain(value: Any) -> Value:
    """Text, a number a browser can hold, true, false or nothing. What is neither is told as text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= WHOLE else _plain(float(value)) if value.bit_length() < 1000 else "a huge number"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()  # lone halves of surrogate pairs are no text
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + " …"


def _cell(value: Value) -> Value:
    """A spreadsheet runs a cell that begins like a formula: such text gets an apostrophe in front."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + value
    return value
