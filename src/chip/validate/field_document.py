"""Replayed rows as JSON: errors of what can be true, by model, GPU, engine, precision and users; what was refused, and
what cannot be true, by reason."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from chip import stats
from chip.validate.field import ReplayedRow
from chip.validate.public import batch_class
from chip.validate.silicon import LICENCE, SOURCE

SCHEMA = "chip.field_validation/1"
CAUTION = (
    "live traffic of as many users as stated, lengths drawn from 0.8 to 1 times those named, ten requests of each "
    "user; means of TTFT and TPOT. Hosts, links and what the columns leave out are not known"
)
METRICS = ("tpot", "ttft")
KEYS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "engine": lambda p: p["engine"],
    "model": lambda p: f"{p['model']}, {p['precision']}",
    "GPU": lambda p: p["gpu"],
    "precision": lambda p: p["precision"],
    "users": lambda p: batch_class(p["users"]),
}


def document(
    replays: Sequence[ReplayedRow], untrue: Mapping[str, str], against: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    points = [_point(r, untrue.get(r.row.id, "")) for r in replays]
    answered = [p for p in points if not p["refused"]]
    judged = [p for p in answered if not p["doubt"]]
    made: dict[str, Any] = {
        "schema": SCHEMA,
        "source": SOURCE,
        "licence": LICENCE,
        "caution": CAUTION,
        "rows": len(points),
        "answered": len(answered),
        "engines": _coverage(points),
        "all": errors(judged),
        "all_answered": errors(answered),
        "groups": {name: _grouped(judged, key) for name, key in KEYS.items()},
        "refused": _counted(p["refused"] for p in points),
        "doubts": _counted(p["doubt"] for p in points),
        "points": points,
    }
    if against is not None:
        made["against"] = compared(judged, against)
    return made


def _point(r: ReplayedRow, doubt: str) -> dict[str, Any]:
    row = r.row
    point: dict[str, Any] = {
        "id": row.id,
        "engine": row.engine,
        "version": row.version,
        "model": row.model or row.hub_id,
    }
    point |= {
        "gpu": row.gpu,
        "precision": row.precision,
        "tp": row.split.tp,
        "ep": row.split.ep,
        "gpus": row.split.gpus,
    }
    point |= {"prompt": row.prompt, "output": row.output, "users": row.users, "disaggregated": row.prefill is not None}
    point |= {"refused": r.refused, "doubt": doubt}
    measured = {"ttft": row.ttft_s, "tpot": row.tpot_s}
    for metric in METRICS:
        values: dict[str, float | None] = {"measured_s": measured[metric]}
        if r.latency:
            predicted_s, low_s, high_s = (getattr(r.latency, f"{metric}{end}_s") for end in ("", "_low", "_high"))
            values |= {"predicted_s": predicted_s, "low_s": low_s, "high_s": high_s}
        point[metric] = values
    return point


def _coverage(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for engine in sorted({p["engine"] for p in points}):
        rows = [p for p in points if p["engine"] == engine]
        done = sum(not p["refused"] for p in rows)
        out.append({"engine": engine, "rows": len(rows), "answered": done, "share": done / len(rows)})
    return out


def once(points: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Each measurement once: the file has many in several rows."""
    seen: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for p in points:
        seen.setdefault((p["ttft"]["measured_s"], p["tpot"]["measured_s"], p["model"], p["tp"], p["ep"]), p)
    return list(seen.values())


def errors(points: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each metric: median and 90th percentile of the error, bias, and the share inside the intervals."""
    distinct = once(points)
    out: dict[str, Any] = {"measurements": len(distinct)}
    for metric in METRICS:
        values = [p[metric] for p in distinct]
        signed = [v["predicted_s"] / v["measured_s"] - 1 for v in values]
        if signed:
            out[metric] = summary(signed)
            out[metric]["inside"] = sum(v["low_s"] <= v["measured_s"] <= v["high_s"] for v in values) / len(values)
    return out


def summary(signed: Sequence[float]) -> dict[str, float]:
    sizes = [abs(e) for e in signed]
    return {"median": stats.median(sizes), "p90": stats.quantile(sizes, 0.9), "bias": stats.median(signed)}


def _grouped(points: Sequence[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], Any]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, Any], list[Mapping[str, Any]]] = defaultdict(list)
    for p in points:
        groups[p["engine"], key(p)].append(p)
    return [
        {"engine": engine, "group": group, **errors(some)}
        for (engine, group), some in sorted(groups.items(), key=_order)
    ]


def _order(item: tuple[tuple[str, Any], Any]) -> tuple[str, int, str]:
    engine, group = item[0]
    number = "".join(c for c in str(group).split(" ")[-1] if c.isdigit())
    return engine, int(number) if str(group)[:1].isdigit() or str(group).startswith("over") else 0, str(group)


def _counted(reasons: Iterable[str]) -> list[dict[str, Any]]:
    return [{"rows": n, "reason": why} for why, n in Counter(filter(None, reasons)).most_common()]


def compared(points: Sequence[Mapping[str, Any]], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Both predictors over the rows that both answer."""
    both = [p for p in once(points) if theirs["answers"].get(p["id"])]
    out: dict[str, Any] = {
        "who": theirs["who"],
        "rows": theirs["rows"],
        "answered": len(theirs["answers"]),
        "groups": [],
    }
    for engine in ("all", *sorted({p["engine"] for p in both})):
        some = [p for p in both if engine in ("all", p["engine"])]
        row: dict[str, Any] = {"engine": engine, "measurements": len(some)}
        for i, metric in enumerate(("ttft", "tpot")):
            if some:
                row[f"{metric}_theirs"] = summary(
                    [theirs["answers"][p["id"]][i] / p[metric]["measured_s"] - 1 for p in some]
                )
                row[f"{metric}_chip"] = summary([p[metric]["predicted_s"] / p[metric]["measured_s"] - 1 for p in some])
        out["groups"].append(row)
    return out
