"""docs/accuracy.md: GPUs that are predicted as if nothing of them had been measured."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from chip import stats
from doc_figures import scripts


@cache
def found() -> dict[tuple[str, str, str], list[float]]:
    """GPU, what is known of it, and what was predicted -> errors."""
    return {(e.gpu, e.known, e.what): list(e.errors) for e in scripts.load("blind_gpu").errors()}


def errors() -> Iterator[str]:
    script = scripts.load("blind_gpu")
    kinds = tuple(script.KINDS.values())
    columns = (*kinds, "all operators", "TTFT", "TPOT")
    yield f"| GPU | known of it | {' | '.join(columns)} |"
    yield f"|---|---|{'---|' * len(columns)}"
    for gpu in script.GPUS:
        for known in script.KNOWN[:2]:
            by = {what: found()[gpu, known, what] for what in (*kinds, "TTFT", "TPOT")}
            by["all operators"] = [error for kind in kinds for error in by[kind]]
            cells = [f"{_percent(by[c], 0.5)}, {_percent(by[c], 0.9)}" for c in columns]
            yield f"| {gpu} | {known} | {' | '.join(cells)} |"


def _percent(errors: list[float], q: float) -> str:
    return f"{100 * stats.quantile([abs(e) for e in errors], q):.1f} %"
