"""Runs of the same model and scenario, two by two: other engines, other variants, or the same again in another file."""

from __future__ import annotations

from itertools import combinations

from chip.compare import compare
from chip.report.summary import Summary
from chip.runs import Run
from chip.types import Scenario

MOST = 2000  # rows; a grid run again and again would fill the page with pairs


def add(out: Summary) -> None:
    groups: dict[tuple[str, Scenario], list[tuple[str, Run]]] = {}
    for file, run in out.runs:
        groups.setdefault((run.model, run.scenario), []).append((file, run))
    for (model, scenario), members in groups.items():
        for (file_a, a), (file_b, b) in combinations(members, 2):
            for line in compare(a, b).lines:
                if len(out.tables["comparisons"]) >= MOST:
                    return
                out.add(
                    "comparisons",
                    model=model,
                    point=scenario.name,
                    first=_who(a, file_a, file_a != file_b),
                    second=_who(b, file_b, file_a != file_b),
                    metric=line.metric,
                    unit=line.unit,
                    first_value=line.first,
                    second_value=line.second,
                    ratio=line.ratio,
                    low=line.low,
                    high=line.high,
                    verdict=line.verdict,
                    source=file_a if file_a == file_b else f"{file_a}, {file_b}",
                )


def _who(run: Run, file: str, with_file: bool) -> str:
    return " ".join(word for word in (run.engine, run.variant, f"({file})" if with_file else "") if word)
