"""The file of measured points of one operator kind on one GPU: `# key: value` notes, then CSV.

The first columns are kernel, context and dtype, then the operator's axes, and last `us`, the time of one call in
microseconds. Rows are sorted, so that the same points always give the same file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from chip.files import artifact, output
from chip.hardware import points
from chip.types import ChipError

LABELS = ("kernel", "context", "dtype")
TIME = "us"
DIGITS = 4  # significant ones of a time


class Row(NamedTuple):
    kernel: str
    context: str
    dtype: str
    at: tuple[int, ...]  # one value for each axis of the table
    us: float

    @property
    def labels(self) -> tuple[str, str, str]:
        return self.kernel, self.context, self.dtype


@dataclass(frozen=True, slots=True)
class Table:
    kind: str
    axes: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: dict[str, str]


def text(table: Table) -> str:
    out = io.StringIO()
    for key, value in table.notes.items():
        out.write(f"# {key}: {' '.join(value.split())}\n")
    write = csv.writer(out, lineterminator="\n")
    write.writerow([*LABELS, *table.axes, TIME])
    for row in sorted(table.rows):
        write.writerow([*row.labels, *row.at, f"{row.us:.{DIGITS}g}" if row.us < 10**DIGITS else f"{row.us:.0f}"])
    return out.getvalue()


def write(path: Path, table: Table) -> None:
    output.write(path, text(table), points.KIND)


def read(path: Path) -> Table:
    lines = artifact.read_text(path).splitlines()
    notes, start = _notes(lines)
    head = lines[start].split(",") if start < len(lines) else []
    if tuple(head[:3]) != LABELS or head[-1] != TIME or len(head) < 5:
        wanted = ",".join(LABELS)
        raise ChipError(f"{path}: line {start + 1} must name the columns {wanted}, then the axes, then {TIME}")
    rows = [_row(path, n, line, len(head)) for n, line in enumerate(lines[start + 1 :], start + 2)]
    return Table(path.stem, tuple(head[3:-1]), tuple(rows), notes)


def _notes(lines: Sequence[str]) -> tuple[dict[str, str], int]:
    notes: dict[str, str] = {}
    for number, line in enumerate(lines):
        if not line.startswith("#"):
            return notes, number
        key, _, value = line[1:].partition(":")
        notes[key.strip()] = value.strip()
    return notes, len(lines)


def _row(path: Path, number: int, line: str, columns: int) -> Row:
    cells = line.split(",")
    if len(cells) != columns:
        raise ChipError(f"{path}: line {number} has {len(cells)} columns, the header has {columns}")
    try:
        row = Row(cells[0], cells[1], cells[2], tuple(map(int, cells[3:-1])), float(cells[-1]))
    except ValueError:
        raise ChipError(f"{path}: line {number}: axes must be whole numbers and {TIME} a number") from None
    if not 0 < row.us < 1e12:
        raise ChipError(f"{path}: line {number}: {TIME} must be a positive number, got {cells[-1][:40]}")
    return row
