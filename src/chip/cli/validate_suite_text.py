"""A published suite against predictions, as people read it."""

from __future__ import annotations

from typing import Any

from chip.cli.text import percent, table
from chip.cli.validate_text import signed
from chip.validate.public import PublishedErrors, fitting, grouped

RIGHT = ("tp", "batch", "points", "models", "median", "p90", "bias", "worst", "inside")


def render(answer: PublishedErrors) -> str:
    suite, whole = answer.suite, fitting(answer.judged)
    waiting = [j for j in answer.judged if not j.fits]
    parts = [
        f"{len(answer.judged)} published runs of {suite.source} ({suite.licence})",
        f"mind: {suite.caution}",
    ]
    if whole:
        parts += ["", _table(grouped(whole)), "", "by batch", _table(grouped(whole, by_batch=True))]
    if waiting:
        parts += ["", "where the KV cache of the batch does not fit (predicted as if it did)", _table(grouped(waiting))]
    return "\n".join(parts)


def _table(groups: list[dict[str, Any]]) -> str:
    return table([_row(g) for g in groups], RIGHT, keep=("gpu", "metric", "points", "median", "p90", "bias", "inside"))


def _row(group: dict[str, Any]) -> dict[str, str]:
    named = {k: str(group[k]) for k in ("gpu", "tp", "engine", "version", "metric", "batch") if k in group}
    errors = {k: percent(group[k]) for k in ("median", "p90", "worst")}
    inside = "-" if group["coverage"] is None else percent(group["coverage"])
    counted = {"points": str(group["points"]), "models": str(group["models"])}
    return {**named, **counted, **errors, "bias": signed(group["bias"]), "inside": inside}
