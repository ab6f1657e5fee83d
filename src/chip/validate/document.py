"""The validation as JSON: what `chip validate --json` prints, which pages and plots are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from chip.validate.classes import CLASSES, JudgedClass, groups, host_bound, intervals, judge_classes, repeats
from chip.validate.judge import Validation
from chip.validate.peers import shared
from chip.validate.points import METRICS, Point, summarise
from chip.validate.unseen import Unseen

SCHEMA = "chip.validation/1"


def document(
    v: Validation,
    theirs: Sequence[Point] = (),
    stages: Sequence[Validation] = (),
    unseen: Sequence[Unseen] = (),
    known: Validation | None = None,
) -> dict[str, Any]:
    """`known`: the same runs, predicted at the launch latency that was measured beside each."""
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "gpu": v.gpu,
        "files": [{"file": s.path.name, "id": s.id, "device": s.device, "runs": len(s.ok)} for s in v.sources],
        "rests_on": [{"file": u.path.name, "id": u.id, "inputs": list(u.inputs)} for u in v.used],
        "classes": [class_json(j) for j in judge_classes(v.points)],
        "groups": groups_json(v.points),
        "intervals": intervals(v.points),
        "other_hosts": repeats(v),
        "host_bound": [
            {"model": p.model, "engine": p.engine, "variant": p.variant, "scenario": p.scenario.name}
            | {"metric": p.metric, "error": p.error, "called": p.called}
            for p in host_bound(v.points)
        ],
        "left_out": list(v.left_out),
        "points": [point_json(p) for p in v.points],
    }
    if known:
        beside = [p for p in known.points if p.latency_known]
        data["latency_known"] = {
            "classes": [class_json(j) for j in judge_classes(beside)],
            "groups": groups_json(beside),
            "intervals": intervals(beside),
            "points": [point_json(p) for p in beside],
        }
    if theirs:
        data["peers"] = {"classes": peer_classes(v.points, theirs), "points": [point_json(p) for p in theirs]}
    if stages:
        data["ablation"] = [
            {
                "stage": s.stage.name.lower(),
                "title": s.stage.title,
                "classes": [class_json(j) for j in judge_classes(s.points)],
                "groups": groups_json(s.points),
            }
            for s in stages
        ]
    if unseen:
        data["leave_one_model_out"] = {
            "models": [{"model": u.model, "measurements_left_out": u.left_out} for u in unseen],
            "seen": [class_json(j) for j in judge_classes([p for u in unseen for p in u.seen])],
            "unseen": [class_json(j) for j in judge_classes([p for u in unseen for p in u.unseen])],
            "points": [point_json(p) for u in unseen for p in u.unseen],
        }
    return data


def point_json(p: Point) -> dict[str, Any]:
    return {
        **{name: getattr(p, name) for name in ("who", "model", "engine", "variant")},
        **{name: getattr(p.scenario, name) for name in ("batch", "prompt", "output", "dtype", "tp")},
        "metric": p.metric,
        "unit": METRICS[p.metric].unit,
        **{name: getattr(p, name) for name in ("predicted", "low", "high", "measured", "error", "inside")},
        "bound": p.bound or None,
        "paced": p.latency_known,
        "called": p.called or None,
        "run": p.run,
        "parts": [part._asdict() for part in p.parts],
    }


def class_json(j: JudgedClass) -> dict[str, Any]:
    wanted, errors = j.wanted, j.found
    return {
        "class": wanted.title,
        "target_median": wanted.median,
        "target_p90": wanted.p90,
        "met": j.met,
        **(asdict(errors) if errors else {"points": 0}),
        "worst_point": point_json(j.worst) if j.worst else None,
    }


def groups_json(points: Sequence[Point]) -> list[dict[str, Any]]:
    return [
        {"engine": g.engine, "variant": g.variant, "metric": g.metric, "bound": g.bound, **asdict(g.found)}
        for g in groups(points)
    ]


def peer_classes(ours: Sequence[Point], theirs: Sequence[Point]) -> list[dict[str, Any]]:
    """By class and peer, with chip's errors over the same points."""
    rows = []
    for wanted in CLASSES:
        for who in dict.fromkeys(p.who for p in theirs):
            members = [p for p in theirs if p.who == who and wanted.has(p)]
            same = [p for p in shared(ours, members) if wanted.has(p)]
            if members and same:
                t, c = summarise(members), summarise(same)
                rows.append(
                    {"class": wanted.title, "peer": who, "points": t.points}
                    | {"median": t.median, "p90": t.p90, "bias": t.bias}
                    | {"chip_median": c.median, "chip_p90": c.p90, "chip_bias": c.bias}
                )
    return rows
