"""The silicon sample replayed, as people read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chip.show.cli.text import Column, percent, signed, table

Row = Mapping[str, Any]


def _both(row: Row, key: str) -> str | None:
    return f"{percent(row[key]['median'])}, {percent(row[key]['p90'])}" if key in row else None


def _of(metric: str) -> tuple[Column, ...]:
    title = metric.upper()
    return (
        (f"{title} error", lambda r: _both(r, metric), str), (f"{title} bias", f"{metric}.bias", signed),
        (f"{title} inside", f"{metric}.inside", percent),
    )  # fmt: skip


ERRORS: tuple[Column, ...] = (("measurements", "measurements", str), *_of("tpot"), *_of("ttft"))
COVERAGE: tuple[Column, ...] = (
    ("engine", "engine", str), ("rows", "rows", str), ("answered", "answered", str), ("share", "share", percent),
)  # fmt: skip
COUNTED: tuple[Column, ...] = (("rows", "rows", str), ("reason", "reason", str))
AGAINST: tuple[Column, ...] = (
    ("engine", "engine", str), ("measurements", "measurements", str),
    *((f"{who} {metric.upper()}", lambda r, k=f"{metric}_{key}": _both(r, k), str)
      for metric in ("tpot", "ttft") for who, key in (("CHIP", "chip"), ("theirs", "theirs"))),
)  # fmt: skip


def render(made: Row) -> str:
    """Errors are median and 90th percentile."""
    parts = [
        f"{made['rows']} published rows of {made['source']} ({made['licence']}), {made['answered']} answered",
        f"mind: {made['caution']}",
        "",
        table(made["engines"], COVERAGE),
    ]
    if made["all"]["measurements"]:
        both = [
            {"what": "rows that can be true", **made["all"]},
            {"what": "all that were answered", **made["all_answered"]},
        ]
        parts += ["", "errors: median, 90th percentile", table(both, (("what", "what", str), *ERRORS))]
        for name, rows in made["groups"].items():
            keys: tuple[Column, ...] = (("engine", "engine", str), (name, "group", str))
            parts += ["", f"by {name}", table(rows, keys[1:] + ERRORS if name == "engine" else keys + ERRORS)]
    if "against" in made:
        theirs = made["against"]
        parts += [
            "",
            f"against {theirs['who']}, which answers {theirs['answered']} of {theirs['rows']} rows; rows of both",
        ]
        parts.append(table(theirs["groups"], AGAINST))
    for key, title in (("refused", "refused"), ("doubts", "cannot be true as the columns stand (not in the errors)")):
        if made[key]:
            parts += ["", title, table(made[key], COUNTED)]
    return "\n".join(parts)
