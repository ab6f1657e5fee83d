"""What the host takes, from runs of small models that wait for it: at one pace, for all families and for each.

A host changes its pace from one second to the next, so every point is taken over the pace that was seen around it.
Families differ in how much Python lies around a kernel. What all of them take is fitted first; what one takes is fitted
to its own points, and held to the others' where those tell little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog

from chip import engine_profile, stats
from chip.measure.engine_points import Point
from chip.predict.overheads import together
from chip.types import Ceiling

# terms of the host's queue in a prefill; the others come before it
LAUNCHED = ("host_kernel_s", "host_layer_graph_s")
ALIKE = ("first_s", "token_s")  # what comes before the first step for families all the same
ROUNDS = 8
HELD = 0.5  # what a family's terms cost that differ from the others': the share of its points that err by as much

Rows = Mapping[str, Callable[[Point], float]]  # terms, and how many of each a point has
Terms = Mapping[str, Ceiling]
Families = dict[str, dict[str, Ceiling]]  # by architecture


class Host(NamedTuple):
    points: list[Point]  # each with how much slower its host was than the middling one
    launch_ns: float  # the pace of that; 0 where nobody looked
    terms: dict[str, Ceiling]
    families: Families  # where there are several


def fit(points: Sequence[Point]) -> Host:
    """From the points between whose repeats somebody looked at the pace. Each host is fitted by itself, since they
    differ in more than their pace; the terms are of the one between, at the pace that is between all hosts'."""
    by_host = [[p for p in points if p.host == host] for host in dict.fromkeys(p.host for p in points)]
    watched = [own for each in by_host if (own := [p for p in each if p.run.watched])]
    if not watched:
        return Host(list(points), 0.0, {}, {})
    launch_ns = stats.median([stats.median([p.pace_ns["decode"] for p in own]) for own in watched])
    at_pace = [[p._replace(slower=_over(p.pace_ns, launch_ns)) for p in own] for own in watched]
    hosts = [found for own in at_pace if (found := _of_host(own))]
    if not hosts:
        return Host(list(points), launch_ns, {}, {})
    terms = _between([all_take for all_take, _ in hosts])
    names = dict.fromkeys(name for _, families in hosts for name in families)
    whole = {name: _between([each.get(name, all_take) for all_take, each in hosts]) for name in names}
    families = {name: {n: t for n, t in found.items() if _distinct(t, terms[n])} for name, found in whole.items()}
    blind = [_guessed(own, terms) for each in by_host if (own := [p for p in each if not p.run.watched])]
    middle = stats.median([stats.median([p.slower["decode"] for p in each]) for each in (*at_pace, *blind)])
    return Host(
        [p._replace(slower=_over(p.slower, middle)) for each in (*at_pace, *blind) for p in each],
        launch_ns * middle,
        _times(terms, middle),
        {family: _times(own, middle) for family, own in families.items()},
    )


def _over(paces: Mapping[str, float], pace: float) -> dict[str, float]:
    return {phase: p / pace for phase, p in paces.items()}


def _times(terms: Terms, factor: float) -> dict[str, Ceiling]:
    return {name: engine_profile.times(t, factor) for name, t in terms.items()}


def _of_host(points: Sequence[Point]) -> tuple[dict[str, Ceiling], Families] | None:
    """What all families take, and what each does."""
    steps = _decode_terms(points)
    if not steps:
        return None
    first = _prefill_terms(points, steps)
    each = _of_families(points, lambda own: _decode_terms(own, steps))
    before = _of_families(points, lambda own: _prefill_terms(own, each.get(own[0].family, steps), first))
    terms = {**steps, **first}
    return terms, {family: {**terms, **found, **before.get(family, {})} for family, found in each.items()}


def _between(hosts: Sequence[Terms]) -> dict[str, Ceiling]:
    """The mean of each term and of its interval: that is of a host, and not of how far hosts are apart."""
    found = {}
    for name in dict.fromkeys(name for terms in hosts for name in terms):
        each = [terms[name] for terms in hosts if name in terms]
        value, low, high = (sum(part) / len(each) for part in zip(*((t.value, t.low, t.high) for t in each)))
        found[name] = Ceiling(value, low, high, "s", "; ".join(dict.fromkeys(t.method for t in each)))
    return found


def _distinct(own: Ceiling, all_take: Ceiling) -> bool:
    """Whether a family's term is another one, and not what hosts and processes are apart."""
    least, most = sorted((own.value, all_take.value))
    return most > engine_profile.WITHIN_A_FAMILY * least


def _guessed(points: Sequence[Point], terms: Terms) -> list[Point]:
    """Points of a host between whose repeats nobody looked, at the pace that their decode steps tell."""
    rows = _decode_rows(points[0].run.engine)
    waiting = [p for p in points if p.waits("decode")]
    told = [p.measured_s["decode"] / sum(terms[name].value * row(p) for name, row in rows.items()) for p in waiting]
    ratio = stats.median(told) if told else 1.0
    return [p._replace(slower={"prefill": ratio, "decode": ratio}) for p in points]


def scheduled(terms: Terms, p: Point) -> float:
    """What the host takes for a step of graphs at the middling pace."""
    each = terms["host_seq_s"].value if "host_seq_s" in terms else 0.0
    return terms["host_step_s"].value + each * p.run.scenario.batch


def _of_families(points: Sequence[Point], of: Callable[[list[Point]], dict[str, Ceiling]]) -> Families:
    by: dict[str, list[Point]] = {}
    for p in points:
        by.setdefault(p.family, []).append(p)
    found = {family: of(own) for family, own in by.items()} if len(by) > 1 else {}
    return {family: terms for family, terms in found.items() if terms}


# --- decode
def _decode_terms(points: Sequence[Point], others: Terms | None = None) -> dict[str, Ceiling]:
    waiting = [p for p in points if p.waits("decode")]
    if not waiting:
        return {}
    seconds = [p.measured_s["decode"] / p.slower["decode"] for p in waiting]
    return regress(waiting, seconds, _decode_rows(waiting[0].run.engine), "decode steps, host-bound", others=others)


def _decode_rows(engine: str) -> Rows:
    if engine == "vllm":
        return {"host_step_s": lambda p: 1.0, "host_seq_s": lambda p: float(p.run.scenario.batch)}
    return {"host_step_s": lambda p: 1.0, "host_kernel_s": lambda p: p.kernels["decode"]}


# --- prefill
def _prefill_terms(points: Sequence[Point], steps: Terms, others: Terms | None = None) -> dict[str, Ceiling]:
    """vLLM launches a decode step as one graph, and a prefill, once it is submitted, layer by layer. HF launches each
    kernel of both by itself, and takes a little more for the first."""
    early = [p for p in points if p.waits("prefill")]
    if not early:
        return {}
    if points[0].run.engine == "vllm":
        prefill: dict[str, Callable[[Point], float]] = {
            "first_s": lambda p: 1.0,
            "request_s": lambda p: float(p.run.scenario.batch),
            "token_s": lambda p: float(p.run.scenario.batch * p.run.scenario.prompt),
            "host_kernel_s": lambda p: 0.0 if p.graph else p.kernels["prefill"],
            "host_layer_graph_s": lambda p: float(p.layers) if p.graph else 0.0,
        }
        fixed = {name: others[name] for name in ALIKE} if others else {}
        return _submitted(early, steps, prefill, fixed, others)
    launched = [steps["host_step_s"].value + steps["host_kernel_s"].value * p.kernels["prefill"] for p in early]
    whole = [p.measured_s["prefill"] / p.slower["prefill"] for p in early]
    rest = [max(0.0, w - known) for w, known in zip(whole, launched)]
    return regress(early, rest, {"first_s": lambda p: 1.0}, "prefills, host-bound", whole, launched, others)


def _submitted(
    points: Sequence[Point], steps: Terms, every: Rows, fixed: Terms, others: Terms | None
) -> dict[str, Ceiling]:
    """What comes before the first step, and what a kernel takes to launch. The step is scheduled like any other; then
    it is what two queues take together: the host's, which launches, and the device's. How far the host's comes through
    rests on the terms that are sought, so they are sought again and again."""
    found: dict[str, Ceiling] = {}
    whole = [p.measured_s["prefill"] / p.slower["prefill"] for p in points]
    device = [p.device_s["prefill"] / p.slower["prefill"] for p in points]
    before = [scheduled(steps, p) + sum(t.value * every[name](p) for name, t in fixed.items()) for p in points]
    rows = {name: row for name, row in every.items() if name not in fixed}
    beside, waits = [0.0] * len(points), [True] * len(points)
    for _ in range(ROUNDS):
        known = [b + more for b, more in zip(before, beside)]
        alone = {id(p) for p, waiting in zip(points, waits) if not waiting}
        apart = {name: partial(_unless, alone, row) if name in LAUNCHED else row for name, row in rows.items()}
        rest = [w - k for w, k in zip(whole, known)]
        found = regress(points, rest, apart, "prompts until the first token, host-bound", whole, known, others)
        launched = [_launched(found, rows, p) for p in points]
        both = [max(h, d) if p.graph else together(h, d) for p, h, d in zip(points, launched, device)]
        waits = [h > d for h, d in zip(launched, device)]
        beside = [b - h if waiting else b for b, h, waiting in zip(both, launched, waits)]
    return found


def _unless(alone: set[int], row: Callable[[Point], float], p: Point) -> float:
    return 0.0 if id(p) in alone else row(p)


def _launched(terms: Terms, rows: Rows, p: Point) -> float:
    return sum(terms[name].value * rows[name](p) for name in LAUNCHED if name in rows)


def regress(
    points: Sequence[Point],
    seconds: Sequence[float],
    rows: Rows,
    method: str,
    whole: Sequence[float] = (),
    known: Sequence[float] = (),
    others: Terms | None = None,
) -> dict[str, Ceiling]:
    """Non-negative terms with the least sum of errors (not squares: a busy host gives outliers), each over what is
    explained or over the `whole` that it is part of. The points' own spread around it, with what is `known` of them, is
    every term's interval. `others`: terms that these are held to."""
    if not points:
        return {}
    y, over = np.array(seconds), np.array(whole or seconds)
    a = np.array([[row(p) for row in rows.values()] for p in points])
    units = np.maximum(a.max(axis=0), 1e-30)  # terms of one size, since solvers have an absolute tolerance
    scaled, wanted = a / units / over[:, None], y / over
    if others:
        weight = HELD * scaled.sum(axis=0)
        scaled = np.vstack([scaled, np.diag(weight)])
        wanted = np.concatenate([wanted, weight * units * [others[name].value for name in rows]])
    count, width = scaled.shape
    slack = np.eye(count)
    least = linprog(
        np.concatenate([np.zeros(width), np.ones(count)]),
        A_ub=np.block([[scaled, -slack], [-scaled, -slack]]),
        b_ub=np.concatenate([wanted, -wanted]),
    )
    found = least.x[:width] / units
    beside = np.array(known) if known else 0.0
    ratio = (y + beside) / np.maximum(a @ found + beside, 1e-9)
    low, high = (float(np.quantile(ratio, q)) for q in (0.05, 0.95))
    low, high = max(0.0, min(1.0, low)), max(1.0, high)
    text = f"{len(points)} {method}; interval: spread of single points"
    return {name: Ceiling(float(v), float(v) * low, float(v) * high, "s", text) for name, v in zip(rows, found)}
