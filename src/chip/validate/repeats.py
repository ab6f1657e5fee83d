"""What was measured on several hosts: how far a run is from the others of the same point. No prediction that does not
know the host can be asked for less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chip import stats
from chip.records import replace
from chip.validate.classes import CLASSES
from chip.validate.judge import Validation
from chip.validate.points import FIRST, Point

LEAST = 10  # points of a class, from which on it is shown


def repeats(v: Validation) -> list[dict[str, Any]]:
    """By class: how far each point is from the median of the other files, each of which is of one host."""
    alike: dict[Any, dict[str, list[Point]]] = {}
    for p in v.points:
        output = 1 if p.metric == FIRST else p.scenario.output
        key = p.model, p.engine, p.variant, p.metric, replace(p.scenario, output=output)
        alike.setdefault(key, {}).setdefault(v.files[p.run], []).append(p)
    errors = [
        (p, stats.median(others) / p.measured - 1)
        for by_file in alike.values()
        for file, members in by_file.items()
        if (others := [o.measured for f, found in by_file.items() if f != file for o in found])
        for p in members
    ]
    return [row for wanted in CLASSES if (row := _row(wanted.title, [e for p, e in errors if wanted.has(p)]))]


def _row(title: str, errors: Sequence[float]) -> dict[str, Any] | None:
    absolute = [abs(e) for e in errors]
    if len(errors) < LEAST:
        return None
    return {
        "class": title, "points": len(errors), "median": stats.median(absolute), "p90": stats.quantile(absolute, 0.9)
    }  # fmt: skip
