"""Runs of the same model and scenario, two by two: other engines, other variants, or the same again in another file.

Runs that calibrate an engine are compared with nothing: their models are cut to a few narrow layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from chip.engines import calibration
from chip.explain.compare import compare
from chip.files import codec
from chip.files.runs import Run
from chip.show.report.summary import Summary
from chip.types import Scenario

IN_TURN, OTHER, REPEAT = "in turn", "other engine", "repeat"
Held = tuple[str, Run]  # file, run


def add(out: Summary) -> None:
    """Different engines and variants first; of an engine's own repeats each is compared with the first one only."""
    groups: dict[tuple[str, Scenario], list[Held]] = {}
    for file, run in out.runs:
        if calibration.is_title(run.model):
            continue
        groups.setdefault((run.model, run.scenario), []).append((file, run))
    for wanted in (OTHER, REPEAT):
        for (model, scenario), members in groups.items():
            for kind, (file_a, a), (file_b, b) in _pairs(members):
                if kind == wanted:
                    _add(out, model, scenario, kind, (file_a, a), (file_b, b))


def _pairs(members: list[Held]) -> Iterator[tuple[str, Held, Held]]:
    """Every engine and variant with every other, by their first runs; then each run with the first of its own kind."""
    kinds: dict[tuple[str, str], list[Held]] = {}
    for held in members:
        kinds.setdefault((held[1].engine, held[1].variant), []).append(held)
    first = [runs[0] for runs in kinds.values()]
    for a, b in combinations(first, 2):
        yield OTHER, a, b
    for runs in kinds.values():
        for again in runs[1:]:
            yield REPEAT, runs[0], again


def _add(out: Summary, model: str, scenario: Scenario, kind: str, first: Held, second: Held) -> None:
    (file_a, a), (file_b, b) = first, second
    who = {"first": _who(a, file_a, file_a != file_b), "second": _who(b, file_b, file_a != file_b)}
    source = file_a if file_a == file_b else f"{file_a}, {file_b}"
    for line in compare(a, b).lines:
        add_line(out, codec.to_json(line), model=model, point=scenario.name, kind=kind, source=source, **who)


def add_line(out: Summary, line: Mapping[str, Any], **about: Any) -> None:
    """A metric of two runs; `about` says which."""
    names = ("metric", "unit", "ratio", "low", "high", "verdict")
    values = {"first_value": line["first"], "second_value": line["second"], **{name: line[name] for name in names}}
    out.add("comparisons", **values, **about)


def _who(run: Run, file: str, with_file: bool) -> str:
    return " ".join(word for word in (run.engine, run.variant, f"({file})" if with_file else "") if word)
