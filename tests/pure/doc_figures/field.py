"""docs/field.md: what benchmarks/field.py kept of a replay of the silicon sample."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[3] / "results" / "published" / "silicon.json"


@cache
def record() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def both(errors: dict[str, Any]) -> str:
    return f"{percent(errors['median'])}, {percent(errors['p90'])}"


def _row(name: str, row: dict[str, Any]) -> str:
    cells = [name, str(row["measurements"])]
    for metric in ("tpot", "ttft"):
        cells += [both(row[metric]), f"{100 * row[metric]['bias']:+.0f} %", f"{100 * row[metric]['inside']:.0f} %"]
    return f"| {' | '.join(cells)} |"


HEAD = "measurements | TPOT | bias | inside | TTFT | bias | inside |"


def answered() -> Iterator[str]:
    yield from ("| engine | rows | answered |", "|---|---|---|")
    for row in record()["engines"]:
        yield f"| {row['engine']} | {row['rows']} | {percent(row['share'])} |"


def errors() -> Iterator[str]:
    yield from (f"| | {HEAD}", "|---|---|---|---|---|---|---|---|")
    yield _row("rows that can be true", record()["all"])
    yield _row("all that were answered", record()["all_answered"])
    for row in record()["groups"]["engine"]:
        yield _row(row["group"], row)


def by(*name: str) -> Iterator[str]:
    key = " ".join(name)
    yield from (f"| engine | {key} | {HEAD}", "|---|---|---|---|---|---|---|---|---|")
    for row in record()["groups"][key]:
        yield f"| {row['engine']} {_row(row['group'], row)}"


def refused() -> Iterator[str]:
    yield from _reasons("refused")


def untrue() -> Iterator[str]:
    yield from _reasons("doubts")


def _reasons(key: str) -> Iterator[str]:
    yield from ("| rows | why |", "|---|---|")
    for row in record()[key]:
        yield f"| {row['rows']} | {row['reason']} |"


def against() -> Iterator[str]:
    theirs = record().get("against")
    yield from ("| engine | measurements | CHIP TPOT | theirs | CHIP TTFT | theirs |", "|---|---|---|---|---|---|")
    for row in theirs["groups"] if theirs else ():
        if row["measurements"]:
            cells = [both(row[f"{metric}_{who}"]) for metric in ("tpot", "ttft") for who in ("chip", "theirs")]
            yield f"| {row['engine']} | {row['measurements']} | {' | '.join(cells)} |"


def share() -> str:
    return f"every {record()['every']}th row"


def they_answer() -> str:
    theirs = record()["against"]
    return f"{theirs['answered']} of {theirs['rows']}"
