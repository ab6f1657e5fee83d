"""Runs of the same model and scenario, two by two: other engines, other variants, or the same again in another file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from chip import stats
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
            for metric, first, second in _samples(a, b):
                if len(out.tables["comparisons"]) >= MOST:
                    return
                found = stats.compare(first, second)
                out.add(
                    "comparisons",
                    model=model,
                    point=scenario.name,
                    first=_who(a, file_a, file_a != file_b),
                    second=_who(b, file_b, file_a != file_b),
                    metric=metric,
                    unit="s",
                    first_value=stats.median(first) * 1e-9,
                    second_value=stats.median(second) * 1e-9,
                    ratio=found.ratio,
                    low=found.low,
                    high=found.high,
                    verdict=found.verdict,
                    source=file_a if file_a == file_b else f"{file_a}, {file_b}",
                )


def _who(run: Run, file: str, with_file: bool) -> str:
    return " ".join(word for word in (run.engine, run.variant, f"({file})" if with_file else "") if word)


def _samples(a: Run, b: Run) -> Iterator[tuple[str, Sequence[float], Sequence[float]]]:
    yield "TTFT", a.ttft_ns, b.ttft_ns
    if a.decodes and b.decodes:
        yield "TPOT", _means(a), _means(b)
    yield "end to end", a.e2e_ns, b.e2e_ns


def _means(run: Run) -> list[float]:
    return [sum(steps) / len(steps) for steps in run.step_ns]
