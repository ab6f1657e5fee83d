"""Predictions held against real runs, as `chip validate --json` judged them: points, classes, groups, peers, stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chip.show.report.sources import Opened
from chip.show.report.summary import Summary

SCHEMAS = ("chip.validation",)
ORDER = 3
SAME = ("who", "model", "engine", "variant", "dtype", "batch", "prompt", "output", "tp", "metric", "unit")


def collect(opened: Opened, out: Summary) -> int:
    data = opened.data
    peers = data.get("peers") or {}
    for p in (*data["points"], *peers.get("points", ())):
        out.add(
            "predictions",
            gpu=data["gpu"],
            error_percent=_percent(p["error"]),
            source=opened.name,
            **{key: p[key] for key in (*SAME, "predicted", "low", "high", "measured", "inside", "bound", "called")},
        )
    for row in data["classes"]:
        _accuracy(out, opened, "class", "chip", row["class"], row)
    for row in data["groups"]:
        words = (row["engine"], row["variant"], row["metric"], "" if row["bound"] == "all" else f"{row['bound']}-bound")
        _accuracy(out, opened, "group", "chip", " ".join(w for w in words if w), row)
    for row in peers.get("classes", ()):
        _accuracy(out, opened, "peer", row["peer"], row["class"], row)
    for stage in data.get("ablation", ()):
        for row in stage["classes"]:
            _accuracy(out, opened, "stage", "chip", f"{stage['title']}: {row['class']}", row)
    for row in (data.get("leave_one_model_out") or {}).get("unseen", ()):
        _accuracy(out, opened, "unseen", "chip", row["class"], row)
    return len(data["points"])


def _accuracy(out: Summary, opened: Opened, kind: str, who: str, name: str, row: Mapping[str, Any]) -> None:
    percents = ("median", "p90", "bias", "target_median", "target_p90", "chip_median", "chip_p90")
    errors = {f"{key}_percent": _percent(row.get(key)) for key in percents}
    counts = {"points": row["points"], "coverage": row.get("coverage"), "met": row.get("met")}
    out.add("accuracy", kind=kind, who=who, name=name, source=opened.name, **counts, **errors)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share
