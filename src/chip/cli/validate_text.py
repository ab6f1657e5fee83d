"""A validation as people read it."""

from __future__ import annotations

from collections.abc import Sequence

from chip.cli.text import duration, gib, number, percent, table
from chip.validate.classes import (
    CLASSES,
    COVERAGE,
    COVERAGE_POINTS,
    COVERED,
    GPU_BOUND_HALF_WIDTH,
    gpu_bound,
    groups,
    host_bound,
    intervals,
    judge_classes,
)
from chip.validate.document import peer_classes
from chip.validate.judge import Validation
from chip.validate.points import GPU, HOST, METRICS, UNKNOWN, ErrorSummary, Point
from chip.validate.repeats import repeats
from chip.validate.unseen import Unseen

NUMBERS = ("predicted", "measured", "error", "median", "p90", "bias", "worst", "inside", "+-", "points", "models")
BOUND = {GPU: "GPU-bound", HOST: "host-bound", UNKNOWN: "the device's activity was not recorded"}
FILES_SHOWN = 4
MET = {True: "yes", False: "NO", None: "no points"}


def value(metric: str, x: float) -> str:
    unit = METRICS[metric].unit
    if unit == "s":
        return duration(x)
    return gib(x) if unit == "B" else f"{number(x, 4)} {unit}"


def signed(error: float) -> str:
    return f"{100 * error:+.1f} %"


def render(
    v: Validation,
    theirs: Sequence[Point] = (),
    stages: Sequence[Validation] = (),
    unseen: Sequence[Unseen] = (),
    known: Validation | None = None,
    points: bool = False,
) -> str:
    """The summary; `points` adds every single one. `known`: the same runs at their measured launch latency."""
    files = ", ".join(s.path.name for s in v.sources)
    parts = [
        f"predictions for {v.gpu} against {len({p.run for p in v.points})} runs of {v.sources[0].device} ({files})",
        f"they rest on {_rests_on(v)}; none of these was made from one of the runs",
    ]
    if known:
        beside = [p for p in known.points if p.latency_known]
        parts += ["", "host unknown: launch latency of the reference host", *_summaries(v.points)]
        parts += ["", f"launch latency measured beside each run: {len({p.run for p in beside})} runs have it"]
        parts += _summaries(beside) if beside else []
    else:
        parts += _summaries(v.points)
    if again := repeats(v):
        rows = [{**r, "median": percent(r["median"]), "p90": percent(r["p90"])} for r in again]
        title = "the same points on other hosts: how far a run is from the median of the other files, each of one host"
        parts += ["", title, table(rows, NUMBERS)]
    if theirs:
        parts += ["", "other predictors, over the points that they were asked for", peers_table(v.points, theirs)]
    if stages:
        parts += ["", "what each stage buys: median and 90th percentile of error", ablation_table(stages)]
    if unseen:
        parts += [
            "",
            "at the stage of operator tables, each model's shapes in the fit or left out",
            unseen_table(unseen),
        ]
    if points:
        parts += ["", "every point", points_table(v.points), *_host_bound(v.points)]
    else:
        parts += ["", f"every one of the {len(v.points)} points: --points"]
    return "\n".join(parts)


def _rests_on(v: Validation) -> str:
    """The files, by name and id while they are few; --json has them all."""
    shown = ", ".join(f"{u.path.name} ({u.id})" for u in v.used[:FILES_SHOWN])
    more = len(v.used) - FILES_SHOWN
    return (shown or "a datasheet alone") + (f" and {more} more files (--json names them)" if more > 0 else "")


def _summaries(points: Sequence[Point]) -> list[str]:
    return [
        *_classes(points),
        *_intervals(points),
        "",
        "by engine and metric (GPU-bound: the device worked for 95 % of the time or more)",
        groups_table(points),
        *_host_bound_line(points),
    ]


def points_table(points: Sequence[Point]) -> str:
    rows = [
        {
            "engine": p.engine,
            "variant": p.variant,
            "metric": p.metric,
            "model": p.model,
            "point": p.scenario.name,
            "predicted": value(p.metric, p.predicted),
            "90 % interval": "-" if p.low is None or p.high is None else _span(p.metric, p.low, p.high),
            "measured": value(p.metric, p.measured),
            "error": signed(p.error),
            "inside": {True: "yes", False: "no", None: "-"}[p.inside],
            "bound": p.bound or "?",
        }
        for p in sorted(points, key=lambda p: (p.engine, p.variant, list(METRICS).index(p.metric), p.model))
    ]
    return table(rows, NUMBERS, keep=("model", "point", "predicted", "measured", "error"))


def _span(metric: str, low: float, high: float) -> str:
    return f"{value(metric, low)} - {value(metric, high)}"


def _summary(s: ErrorSummary) -> dict[str, str]:
    return {
        "points": str(s.points),
        "models": str(s.models),
        "median": percent(s.median),
        "p90": percent(s.p90),
        "bias": signed(s.bias),
        "worst": percent(s.worst),
        "inside": "-" if s.coverage is None else percent(s.coverage),
        "+-": "-" if s.half_width is None else percent(s.half_width),
    }


def groups_table(points: Sequence[Point]) -> str:
    rows = [
        {"engine": g.engine, "variant": g.variant, "metric": g.metric, "bound": g.bound, **_summary(g.found)}
        for g in groups(points)
    ]
    return table(rows, NUMBERS, keep=tuple(rows[0]) if len(rows) == 1 else ("engine", "metric", "points", "median"))


def _host_bound_line(points: Sequence[Point]) -> list[str]:
    waiting = host_bound(points)
    if not waiting:
        return []
    called = sum(p.called == HOST for p in waiting)
    busy = [p.called == HOST for p in gpu_bound(points)]
    others = f", and of {sum(busy)} of the {len(busy)} that are not" if busy else ""
    return ["", f"host-bound as measured: {len(waiting)}; the prediction says so of {called}{others}"]


def _host_bound(points: Sequence[Point]) -> list[str]:
    rows = [
        {
            "engine": p.engine,
            "variant": p.variant,
            "metric": p.metric,
            "model": p.model,
            "point": p.scenario.name,
            "error": signed(p.error),
            "predicted bound": p.called or "-",
        }
        for p in host_bound(points)
    ]
    shown = table(rows, NUMBERS, keep=("model", "point", "error", "predicted bound"))
    return ["", "host-bound as measured", shown] if rows else []


def _intervals(points: Sequence[Point]) -> list[str]:
    found = intervals(points)
    low, high = COVERAGE
    rows = [
        {
            "metric": metric,
            "points": row["points"],
            "inside": percent(row["coverage"]),
            "met": "too few points" if row["met"] is None else MET[row["met"]],
        }
        for metric, row in ((metric, found["metrics"][metric]) for metric in COVERED)
        if row["points"]
    ]
    if not rows:
        return []
    asked = f"{100 * low:g} to {100 * high:g} % of each metric's points, of at least {COVERAGE_POINTS}"
    parts = ["", f"90 % intervals, asked to hold {asked}", table(rows, NUMBERS, keep=tuple(rows[0]))]
    if found["gpu_bound_half_width"] is not None:
        width = percent(found["gpu_bound_half_width"])
        parts.append(f"GPU-bound TTFT and TPOT: +-{width} wide (asked: {100 * GPU_BOUND_HALF_WIDTH:g} %)")
    return parts


def _classes(points: Sequence[Point]) -> list[str]:
    if not any(c.has(p) for c in CLASSES for p in points):
        return ["", "none of these runs is of a kind that a target is set for"]
    return ["", "against what is asked", classes_table(points), *_missed(points)]


def classes_table(points: Sequence[Point]) -> str:
    rows = []
    for j in judge_classes(points):
        asked = ", ".join(f"{100 * x:g} %" for x in (j.wanted.median, j.wanted.p90) if x is not None)
        nothing = dict.fromkeys(("points", "models", "median", "p90", "bias", "worst", "inside", "+-"), "-")
        rows.append(
            {"class": j.wanted.title, "asked": asked, "met": MET[j.met] if asked else ""}
            | (_summary(j.found) if j.found else {**nothing, "points": "0"})
        )
    return table(rows, NUMBERS, keep=tuple(rows[0]))


def _missed(points: Sequence[Point]) -> list[str]:
    """Where to look: the worst point of each class that is missed, and what its prediction is made of."""
    out = []
    for j in judge_classes(points):
        if j.met is False and j.worst:
            p = j.worst
            bound = BOUND[p.bound]
            parts = ", ".join(f"{percent(part.share)} {part.role} ({part.source})" for part in p.parts)
            made = f"; predicted as {parts}" if parts else ""
            out.append(
                f"{j.wanted.title}: worst {p.metric} of {p.model} {p.scenario.name}, {signed(p.error)}, {bound}{made}"
            )
    return ["", "missed", *out] if out else []


def peers_table(points: Sequence[Point], theirs: Sequence[Point]) -> str:
    rows = [
        {
            "class": r["class"],
            "predictor": r["peer"],
            "points": r["points"],
            "median": percent(r["median"]),
            "p90": percent(r["p90"]),
            "bias": signed(r["bias"]),
            "chip, same points": f"{percent(r['chip_median'])}, {percent(r['chip_p90'])}",
        }
        for r in peer_classes(points, theirs)
    ]
    return table(rows, (*NUMBERS, "chip, same points"), keep=tuple(rows[0]) if rows else ())


def ablation_table(stages: Sequence[Validation]) -> str:
    """A row for each class that has points, then for each engine's TTFT and TPOT."""
    columns = [_figures(s.points) for s in stages]
    rows = []
    for title, last in columns[-1].items():
        row: dict[str, object] = {"class": title, "points": last.points}
        for s, column in zip(stages, columns):
            found = column.get(title)
            row[s.stage.title] = f"{percent(found.median)}, {percent(found.p90)}" if found else "-"
        rows.append(row)
    return table(rows, ("points", *(s.stage.title for s in stages)), keep=tuple(rows[0]))


def _figures(points: Sequence[Point]) -> dict[str, ErrorSummary]:
    found = {j.wanted.title: j.found for j in judge_classes(points) if j.found}
    for g in groups(points):
        if g.bound == "all" and g.metric in ("ttft", "tpot"):
            found[" ".join(filter(None, (g.engine, g.variant, g.metric)))] = g.found
    return found


def unseen_table(unseen: Sequence[Unseen]) -> str:
    rows = []
    for name, these in (("all", unseen), *((u.model, [u]) for u in unseen)):
        seen = _figures([p for u in these for p in u.seen])
        for title, left in _figures([p for u in these for p in u.unseen]).items():
            rows.append(
                {
                    "model": name,
                    "left out": "-" if these is unseen else these[0].left_out,
                    "class": title,
                    "points": left.points,
                    "in the fit": f"{percent(seen[title].median)}, {percent(seen[title].p90)}",
                    "unseen": f"{percent(left.median)}, {percent(left.p90)}",
                }
            )
    return table(rows, ("left out", "points", "in the fit", "unseen"), keep=tuple(rows[0]))
