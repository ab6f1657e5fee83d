"""Validations as people read them: of runs, of what others published, of live traffic; each from its JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from chip.show.cli.text import Column, amount, digits, duration, gib, percent, signed, table
from chip.types import Scenario
from chip.validate.classes import COVERAGE, COVERAGE_POINTS, GPU_BOUND_HALF_WIDTH, STEPS, judge_classes
from chip.validate.document import class_json, groups_json
from chip.validate.points import GPU, HOST, METRICS, Point
from chip.validate.unseen import Unseen

BOUND = {GPU: "GPU-bound", HOST: "host-bound", None: "the device's activity was not recorded"}
FILES_SHOWN = 4
MET = {True: "yes", False: "NO", None: "-"}
Row = Mapping[str, Any]


def targets(row: Row) -> str:
    return ", ".join(f"{100 * row[key]:g} %" for key in ("target_median", "target_p90") if row[key] is not None)


def both(row: Row | None, prefix: str = "") -> str | None:
    """Median and 90th percentile."""
    return f"{percent(row[f'{prefix}median'])}, {percent(row[f'{prefix}p90'])}" if row else None


def value(key: str) -> Callable[[Row], str | None]:
    """A figure of a point in its unit."""

    def shown(row: Row) -> str | None:
        x, unit = row[key], row["unit"]
        if x is None:
            return None
        return duration(x) if unit == "s" else gib(x) if unit == "B" else f"{amount(x)} {unit}"

    return shown


def scenario(row: Row) -> str:
    return Scenario(row["batch"], row["prompt"], row["output"], row["dtype"], row["tp"]).name


def _interval(row: Row) -> str | None:
    low, high = (value(end)(row) for end in ("low", "high"))
    return None if low is None or high is None else f"{low} - {high}"


def _met(row: Row) -> str | None:
    return ("no points" if row["met"] is None else MET[row["met"]]) if targets(row) else None


WHOSE: tuple[Column, ...] = (("engine", "engine"), ("variant", "variant"), ("metric", "metric", str))
ERRORS: tuple[Column, ...] = (
    ("points", "points", str), ("models", "models"), ("median", "median", percent), ("p90", "p90", percent),
    ("bias", "bias", signed), ("worst", "worst", percent), ("inside", "coverage", percent),
    ("+-", "half_width", percent),
)  # fmt: skip
CLASSES: tuple[Column, ...] = (("class", "class", str), ("asked", targets), ("met", _met, str), *ERRORS)
GROUPS: tuple[Column, ...] = (*WHOSE, ("bound", "bound"), *ERRORS)
INTERVALS: tuple[Column, ...] = (
    ("metric", "metric", str), ("points", "points", str), ("inside", "coverage", percent),
    ("met", lambda r: "too few points" if r["met"] is None else MET[r["met"]], str),
)  # fmt: skip
POINTS: tuple[Column, ...] = (
    *WHOSE, ("model", "model", str), ("point", scenario, str), ("predicted", value("predicted"), str),
    ("90 % interval", _interval, str), ("measured", value("measured"), str), ("error", "error", signed),
    ("inside", "inside", MET.__getitem__), ("bound", "bound"),
)  # fmt: skip
HOST_BOUND: tuple[Column, ...] = (
    *WHOSE, ("model", "model", str), ("point", "scenario", str), ("error", "error", signed),
    ("predicted bound", "called", str),
)  # fmt: skip
PEERS: tuple[Column, ...] = (
    ("class", "class", str), ("predictor", "peer", str), ("points", "points", str), ("median", "median", percent),
    ("p90", "p90", percent), ("bias", "bias", signed), ("chip, same points", lambda r: both(r, "chip_"), str),
)  # fmt: skip


def render(judged: dict[str, Any], unseen: Sequence[Unseen] = (), points: bool = False) -> str:
    """The summary; `points` adds every single one."""
    files, runs = ", ".join(f["file"] for f in judged["files"]), len({p["run"] for p in judged["points"]})
    parts = [
        f"predictions for {judged['gpu']} against {runs} runs of {judged['files'][0]['device']} ({files})",
        f"they rest on {_rests_on(judged['rests_on'])}; none of these was made from one of the runs",
    ]
    if known := judged.get("latency_known"):
        parts += ["", "host unknown: launch latency of the reference host", *_summaries(judged)]
        beside = len({p["run"] for p in known["points"]})
        parts += ["", f"launch latency measured beside each run: {beside} runs have it"]
        parts += _summaries(known) if beside else []
    else:
        parts += _summaries(judged)
    if judged["other_hosts"]:
        title = "the same points on other hosts: how far a run is from the median of the other files, each of one host"
        parts += ["", title, table(judged["other_hosts"], CLASSES[:1] + ERRORS[:1] + ERRORS[2:4])]
    if peers := judged.get("peers"):
        parts += ["", "other predictors, over the points that they were asked for", table(peers["classes"], PEERS)]
    if stages := judged.get("ablation"):
        parts += ["", "what each stage buys: median and 90th percentile of error", ablation_table(stages)]
    if unseen:
        title = "at the stage of operator tables, each model's shapes in the fit or left out"
        parts += ["", title, unseen_table(unseen)]
    if points:
        order = list(METRICS)
        rows = sorted(judged["points"], key=lambda p: (p["engine"], p["variant"], order.index(p["metric"]), p["model"]))
        parts += ["", "every point", table(rows, POINTS)]
        if judged["host_bound"]:
            parts += ["", "host-bound as measured", table(judged["host_bound"], HOST_BOUND)]
    else:
        parts += ["", f"every one of the {len(judged['points'])} points: --points"]
    return "\n".join(parts)


def _rests_on(used: Sequence[Row]) -> str:
    """The files, by name and id while they are few; --json has them all."""
    shown = ", ".join(f"{u['file']} ({u['id']})" for u in used[:FILES_SHOWN])
    more = len(used) - FILES_SHOWN
    return (shown or "a datasheet alone") + (f" and {more} more files (--json names them)" if more > 0 else "")


def _summaries(judged: dict[str, Any]) -> list[str]:
    parts = ["", "none of these runs is of a kind that a target is set for"]
    if any(row["points"] for row in judged["classes"]):
        parts = ["", "against what is asked", table(judged["classes"], CLASSES), *_missed(judged["classes"])]
    intervals = judged["intervals"]
    if rows := [{"metric": metric, **row} for metric, row in intervals["metrics"].items() if row["points"]]:
        low, high = (100 * x for x in COVERAGE)
        wanted = f"{low:g} to {high:g} % of each metric's points, of at least {COVERAGE_POINTS}"
        parts += ["", f"90 % intervals, asked to hold {wanted}", table(rows, INTERVALS)]
        if intervals["gpu_bound_half_width"] is not None:
            width = percent(intervals["gpu_bound_half_width"])
            parts.append(f"GPU-bound TTFT and TPOT: +-{width} wide (asked: {100 * GPU_BOUND_HALF_WIDTH:g} %)")
    title = "by engine and metric (GPU-bound: the device worked for 95 % of the time or more)"
    keep = ("engine", "bound") if len(judged["groups"]) == 1 else ()
    parts += ["", title, table(judged["groups"], GROUPS, keep)]
    waiting, busy = (
        [p["called"] == HOST for p in judged["points"] if p["bound"] == bound and p["metric"] in STEPS]
        for bound in (HOST, GPU)
    )
    if waiting:
        others = f", and of {sum(busy)} of the {len(busy)} that are not" if busy else ""
        parts += ["", f"host-bound as measured: {len(waiting)}; the prediction says so of {sum(waiting)}{others}"]
    return parts


def _missed(classes: Iterable[Row]) -> list[str]:
    """Where to look: the worst point of each class that is missed, and what its prediction is made of."""
    out = []
    for row in classes:
        if row["met"] is False and (p := row["worst_point"]):
            parts = ", ".join(f"{percent(part['share'])} {part['role']} ({part['source']})" for part in p["parts"])
            where = f"{p['metric']} of {p['model']} {scenario(p)}, {signed(p['error'])}, {BOUND[p['bound']]}"
            out.append(f"{row['class']}: worst {where}" + (f"; predicted as {parts}" if parts else ""))
    return ["", "missed", *out] if out else []


def ablation_table(stages: Sequence[Row]) -> str:
    """A row for each class that has points, then for each engine's TTFT and TPOT."""
    columns: list[Column] = [("class", "class", str), ("points", "points", str)]
    rows = {title: {"class": title, "points": last["points"]} for title, last in _figures(stages[-1]).items()}
    for stage in stages:
        columns.append((stage["title"], stage["title"], str))
        for title, figures in _figures(stage).items():
            rows.setdefault(title, {})[stage["title"]] = both(figures)
    return table([row for row in rows.values() if "class" in row], columns)


def _figures(judged: Row) -> dict[str, Row]:
    figures = {row["class"]: row for row in judged["classes"] if row["points"]}
    for g in judged["groups"]:
        if g["bound"] == "all" and g["metric"] in STEPS:
            figures[" ".join(filter(None, (g["engine"], g["variant"], g["metric"])))] = g
    return figures


def unseen_table(unseen: Sequence[Unseen]) -> str:
    names = ("model", "left out", "class", "points", "in the fit", "unseen")
    rows = []
    for name, these in (("all", unseen), *((u.model, [u]) for u in unseen)):
        seen = _judged([p for u in these for p in u.seen])
        for title, left in _judged([p for u in these for p in u.unseen]).items():
            row = {"model": name, "left out": None if these is unseen else these[0].left_out, "class": title}
            rows.append({**row, "points": left["points"], "in the fit": both(seen[title]), "unseen": both(left)})
    return table(rows, [(name, name, str) for name in names])


def _judged(points: Sequence[Point]) -> dict[str, Row]:
    return _figures({"classes": map(class_json, judge_classes(points)), "groups": groups_json(points)})


# -- what others published ---------------------------------------------------------------------------------------------
PUBLISHED: tuple[Column, ...] = (
    ("gpu", "gpu", str), ("tp", "tp"), ("engine", "engine"), ("version", "version"), ("metric", "metric", str),
    ("batch", "batch"), *ERRORS[:4], ERRORS[5], ERRORS[4], ERRORS[6],
)  # fmt: skip


def render_suite(judged: dict[str, Any]) -> str:
    parts = [
        f"{len(judged['points'])} published runs of {judged['source']} ({judged['licence']})",
        f"mind: {judged['caution']}",
    ]
    if judged["groups"]:
        parts += ["", table(judged["groups"], PUBLISHED), "", "by batch", table(judged["by_batch"], PUBLISHED)]
    if judged["does_not_fit"]:
        title = "where the KV cache of the batch does not fit (predicted as if it did)"
        parts += ["", title, table(judged["does_not_fit"], PUBLISHED)]
    return "\n".join(parts)


# -- live traffic ------------------------------------------------------------------------------------------------------
def gpus(p: Row) -> str:
    count = max(p["tp"], p["ep"])
    return f"{count} x {p['gpu']}" if count > 1 else str(p["gpu"])


TRAFFIC: tuple[Column, ...] = (
    ("gpu", gpus), ("model", "model"), ("workload", "workload"),
    ("rate/s", lambda p: digits(4)(p["rate_per_s"]) if p["rate_per_s"] else "at once"),
    ("metric", lambda p: p["metric"].replace("_ms.", " ").replace("output_tokens_per_s", "tok/s")),
    ("measured", "measured", amount), ("simulated", "predicted", amount), ("error", "error", signed),
    ("in the interval", "inside", MET.__getitem__), ("by request", lambda p: both(p.get("by_request")), str),
)  # fmt: skip
TRAFFIC_METRICS: tuple[Column, ...] = (
    ("metric", "metric", str), ("runs", "runs", str), ("median error", "median_error", percent),
    ("worst", "worst_error", percent), ("bias", "bias", signed), ("target", "target", percent),
    ("met", "met", MET.__getitem__),
)  # fmt: skip


def render_traffic(judged: Row) -> str:
    """Each run and figure, and the median errors over runs."""
    return f"{table(judged['points'], TRAFFIC)}\n\n{table(judged['metrics'], TRAFFIC_METRICS)}"
