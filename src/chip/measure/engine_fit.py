"""From runs of small models, two that differ only in their layers or several such pairs, to an engine's terms.

What grows with the layers and what does not are told apart by the two depths; what the operators take is predicted from
tables. Nothing is negative. An interval is the spread of single points around the fit, since a busy host is the noise.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog

from chip import artifact, codec, engine_profile, hardware, runs, stats
from chip.artifact import Artifact
from chip.engine_profile import EngineProfile
from chip.models import describe
from chip.ops.attention import Attention
from chip.predict.request import composer, predict
from chip.predict.stages import Stage
from chip.runs import Run, Runs
from chip.types import Ceiling, ChipError, Scenario

HOST_BOUND = 0.7  # of the step the device worked: below it the host sets the pace
DEVICE_BOUND = 0.9
HOST_AWAY = 0.8  # of a step: where the host needs more, its delays come through
ATTENTION = "flash::"  # in the names of vLLM's attention kernels
GRAPHS = "hf-graph"  # whose gaps stand in where none could be measured
# terms of the host's queue in a prefill; the others come before it
LAUNCHED = ("host_kernel_s", "host_layer_graph_s")
ROUNDS = 8
STEADY = 1.15  # between the paces of a host before and after a point
LOWERED = 0.3  # prompts that lower the clock less tell nothing of how it comes back
ONE_QUEUE = {"prefill": 1.0, "decode": 1.0}  # a CPU is host and device at once: it never waits for itself


class Point(NamedTuple):
    run: Run
    base: str  # its model but for the depth
    layers: int
    device_s: dict[str, float]  # "prefill", "decode": what the operators alone should take
    kernels: dict[str, float]
    attention_s: float  # of a decode step, alone
    lowered: float  # how far its prompt lowered the clock
    busy: Mapping[str, float]  # share of each phase that the device worked, where it is known
    host: int  # runs of one file are of one
    slower: float = 1.0  # its host's pace over the one that the host's terms are to hold at

    @property
    def measured_s(self) -> dict[str, float]:
        return {"prefill": self.run.ttft_s, "decode": self.run.tpot_s}

    def kernel_time_s(self, phase: str, like: str = "") -> float | None:
        """What its kernels took under the profiler, or those alone whose names hold `like`; where the run tells."""
        table = self.run.settings.get("kernels", {}).get(phase)
        return sum(us for name, _, us in table if like in name) * 1e-6 if table else None

    @property
    def graph(self) -> bool:
        """Whether its prefill ran as (pieces of) graphs."""
        return bool(self.kernels["graphed"])


Rows = Mapping[str, Callable[[Point], float]]  # terms, and how many of each a point has


def from_files(paths: Sequence[Path], gpu: str, engine: str) -> tuple[EngineProfile, Artifact]:
    """What files of runs tell together, and the artifact of it: it names every run it was made from. Several are of
    several hosts; the terms are then of a middling one, and their intervals of all."""
    h, read = hardware.find(gpu), [runs.read(path) for path in paths]
    for path, (held, _) in zip(paths, read):
        device = held.environment.get("device")
        if h.profile is None or h.profile.device != device:
            raise ChipError(f"{path}: was measured on {device}, {gpu} is {h.title}; say its profile with --gpu")
    environment = read[0][0].environment
    profile, ids = fit([each for _, each in read], gpu, engine, str(environment.get("cpu", "")))
    return profile, artifact.new(EngineProfile.SCHEMA, codec.to_json(profile), environment, ids)


def fit(found: Sequence[Runs], gpu: str, engine: str, cpu: str) -> tuple[EngineProfile, list[str]]:
    """The profile, and the ids of the runs it was made from; those of each host apart."""
    configs = {name: config for each in found for name, config in each.configs.items()}
    hosts = {id(r): host for host, each in enumerate(found) for r in each.runs}
    asked = [r for each in found for r in each.runs if r.status == "ok" and r.engine == engine and r.decodes]
    points, launch_ns, steps = _at_one_pace(
        [_point(r, hosts[id(r)], configs, gpu) for r in _of_two_depths(asked, configs, engine)]
    )
    host = {**steps, **_prefill_terms(points, steps)}
    busy = _device_bound(points, host)
    terms = {**_device_terms(points, busy, gpu), **host}
    if not terms:
        raise ChipError(f"the runs of {engine} do not tell how long the device worked: may the profiler be used here?")
    version = points[0].run.engine_version
    models = tuple(dict.fromkeys(p.run.model for p in points))
    measured = hardware.find(gpu).profile
    assert measured is not None
    profile = EngineProfile(engine, version, measured.device, cpu, models, terms, launch_ns)
    borrowed = _borrowed(busy, gpu) if "kernel_s" in terms else ()
    return profile, [*(runs.id_of(p.run) for p in points), *borrowed]


def _at_one_pace(points: Sequence[Point]) -> tuple[list[Point], float, dict[str, Ceiling]]:
    """The points, each with how much slower its host was than the middling one; the pace of that, 0 where nobody
    looked; and what it takes for decode steps.

    Paces of launches tell one point from another until decode steps that wait for the host alone are fitted. From then
    on these tell, since they ran among the very repeats."""
    known = [p for p in points if p.run.launch_ns and _steady(p.run)]
    launch_ns = stats.median([p.run.pace_ns for p in known]) if known else 0.0
    steps = _decode_terms([p._replace(slower=p.run.pace_ns / launch_ns) for p in known] or points)
    if not steps:
        return list(points), launch_ns, {}
    rows = _decode_rows(points[0].run.engine)
    told = [p._replace(slower=_slower(p, steps, rows, launch_ns)) for p in points]
    by_host = [[p.slower for p in told if p.host == host and _waits(p)] for host in {p.host for p in told}]
    middle = stats.median([stats.median(each) for each in by_host if each])
    scaled = {name: engine_profile.times(t, middle) for name, t in steps.items()}
    return [p._replace(slower=p.slower / middle) for p in told], launch_ns * middle, scaled


def _slower(p: Point, steps: Mapping[str, Ceiling], rows: Rows, launch_ns: float) -> float:
    if _waits(p):
        return p.measured_s["decode"] / sum(steps[name].value * row(p) for name, row in rows.items())
    return p.run.pace_ns / launch_ns if p.run.launch_ns else 1.0


def _waits(p: Point) -> bool:
    """Whether the host alone set the pace of its decode steps."""
    return p.busy.get("decode", 1.0) < HOST_BOUND


def _steady(run: Run) -> bool:
    """Whether its host kept its pace: where it did not, nobody knows at which one the repeats ran."""
    return max(run.launch_ns) <= STEADY * min(run.launch_ns)


def _borrowed(busy: Sequence[Point], gpu: str) -> tuple[str, ...]:
    """Ids of the runs behind gaps that stand in where `busy` tells none."""
    path = engine_profile.path_for(hardware.find(gpu), GRAPHS)
    if _pairs(busy) or not path.is_file():
        return ()
    return artifact.read(path, EngineProfile.SCHEMA).inputs


def _device_bound(points: Sequence[Point], host: Mapping[str, Ceiling]) -> list[Point]:
    """Those that the device set the pace of: under the profiler, and with the host far from setting it."""
    busy = [p for p in points if p.busy.get("decode", 0.0) >= DEVICE_BOUND]
    return [p for p in busy if not host or _scheduled(host, p) * p.slower <= HOST_AWAY * p.measured_s["decode"]]


def _of_two_depths(judged: Sequence[Run], configs: Mapping[str, Mapping[str, Any]], engine: str) -> list[Run]:
    """The runs of models that ran at two depths, which must be of one version and one setting: else terms would be told
    apart by what they are not."""
    if unknown := {r.model for r in judged} - set(configs):
        raise ChipError(f"the runs do not have the config of {min(unknown)}")
    depths: dict[str, set[int]] = {}
    for r in judged:
        depths.setdefault(_base(configs[r.model]), set()).add(configs[r.model]["num_hidden_layers"])
    kept = [r for r in judged if len(depths[_base(configs[r.model])]) > 1]
    if not kept and len(depths) > 1:
        raise ChipError(f"the terms of {engine} need two runs of one model, its depth alone may differ")
    if not kept:
        found = sum(map(len, depths.values()))
        raise ChipError(f"the terms of {engine} need runs of two depths of one model, found {found}")
    for what, seen in (("versions", {r.engine_version for r in kept}), ("settings", {r.variant for r in kept})):
        if len(seen) > 1:
            each = " and ".join(sorted(repr(s) for s in seen))
            raise ChipError(f"the runs of {engine} are of several {what}, {each}: keep them apart with -o")
    return kept


def _base(config: Mapping[str, Any]) -> str:
    return json.dumps({k: v for k, v in config.items() if k != "num_hidden_layers"}, sort_keys=True)


def _point(run: Run, host: int, configs: Mapping[str, Mapping[str, Any]], gpu: str) -> Point:
    decoder = describe(dict(configs[run.model]), run.model, run.model)
    s = run.scenario
    made = predict(decoder, gpu, run.engine, s, Stage.TABLES)
    assert made.decode is not None
    c, roof = composer(decoder, gpu, run.engine, s.dtype, s.tp, Stage.TABLES)
    first = c.work(c.engine.prefill(s, roof.memory_bytes), s)
    step = c.work(c.engine.decode(s, roof.memory_bytes), None)
    return Point(
        run,
        _base(configs[run.model]),
        c.layers,
        {"prefill": made.prefill.seconds, "decode": made.decode.seconds},
        {"prefill": first.kernels, "decode": step.kernels / step.steps, "graphed": first.graph_layers},
        sum(line.seconds for line in made.decode.lines if line.kind == Attention.kind),
        c.lowered(made.prefill),
        ONE_QUEUE if _is_cpu(gpu) else run.busy,
        host,
    )


def _is_cpu(gpu: str) -> bool:
    profile = hardware.find(gpu).profile
    return profile is not None and profile.kind == "cpu"


def _pairs(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """(shallow, deep) of one model and scenario on one host."""
    by: dict[tuple[Scenario, str, int], list[Point]] = {}
    for p in sorted(points, key=lambda p: p.layers):
        by.setdefault((p.run.scenario, p.base, p.host), []).append(p)
    return [(same[0], same[-1]) for same in by.values() if same[0].layers < same[-1].layers]


def _device_terms(points: Sequence[Point], busy: Sequence[Point], gpu: str) -> dict[str, Ceiling]:
    """What decode steps take beyond their operators: gaps that grow with the kernels, attention that is slower
    than alone, and what a step has around the model.

    Where the host was too slow for the device ever to be the longer, gaps cannot be told from waiting: those of the
    same GPU's graphs stand in, measured with hf-graph, and the kernels under the profiler tell the rest.
    """
    around = _around(points)
    if _pairs(busy):
        return _beyond_operators(busy, around)
    graphs = engine_profile.find(hardware.find(gpu), GRAPHS)
    gap = graphs.terms["kernel_s"] if graphs else Ceiling(0.0, 0.0, 0.0, "s", "not measured")
    return {"kernel_s": replace(gap, method=f"of {GRAPHS}: {gap.method}"), **around} if around else {}


def _around(points: Sequence[Point]) -> dict[str, Ceiling]:
    """What a step has around the model, from its kernels under the profiler, attention's own left out; nothing where
    runs have no such kernels."""
    told = [(p, p.kernel_time_s("decode"), p.kernel_time_s("decode", ATTENTION)) for p in points]
    beyond = [
        max(0.0, whole - p.device_s["decode"] - (attention - p.attention_s if attention else 0.0))
        for p, whole, attention in told
        if whole is not None
    ]
    return {"step_s": _term(beyond, "kernels of a decode step beyond its operators")} if beyond else {}


def _beyond_operators(points: Sequence[Point], around: dict[str, Ceiling]) -> dict[str, Ceiling]:
    """Attention by its own kernels, since nothing else tells it from gaps; the clock by the steps after a prompt; what
    is left are gaps, or, where `around` is not known from kernels, what two depths tell apart."""
    terms = dict(around)
    attention = [(p.kernel_time_s("decode", ATTENTION) or 0.0, p.attention_s) for p in points]
    if shares := [max(0.0, inside / alone - 1) for inside, alone in attention if inside and alone]:
        terms["attention_share"] = _term(shares, "attention's kernels in decode steps, over what they take alone", "1")
    if back := [_recovery(p) / p.lowered for p in points if p.lowered >= LOWERED]:
        terms["recovery_s"] = _term(back, "first half of the decode steps beyond the second half")
    share = terms["attention_share"].value if shares else 0.0
    whole = [p.measured_s["decode"] for p in points]
    alone = [p.device_s["decode"] + share * p.attention_s + _recovery(p) / len(p.run.step_ns[0]) for p in points]
    beyond = [w - a for w, a in zip(whole, alone)]
    if around:
        step = around["step_s"].value
        each = [max(0.0, b - step) / p.kernels["decode"] for b, p in zip(beyond, points)]
        return {**terms, "kernel_s": _term(each, "decode step beyond its operators, for each kernel")}
    rows: dict[str, Callable[[Point], float]] = {"kernel_s": lambda p: p.kernels["decode"], "step_s": lambda p: 1.0}
    return {**terms, **_regress(points, beyond, rows, "decode steps beyond their operators, device-bound", whole)}


def _recovery(p: Point) -> float:
    """What the steps after a long prompt take beyond the later ones. The first and the last are left out: their stamps
    wait for what an engine does once for each request."""
    if p.lowered < LOWERED:
        return 0.0
    steps = [stats.median(each) * 1e-9 for each in zip(*p.run.step_ns)][1:-1]
    half = len(steps) // 2
    later = stats.median(steps[half:])
    return max(0.0, sum(s - later for s in steps[:half]))


def _prefill_terms(points: Sequence[Point], steps: Mapping[str, Ceiling]) -> dict[str, Ceiling]:
    """Of vLLM, which launches a decode step as one graph, and a prefill, once it is submitted, layer by layer. HF
    launches each kernel of both by itself."""
    if not steps or points[0].run.engine != "vllm":
        return {}
    prefill: dict[str, Callable[[Point], float]] = {
        "first_s": lambda p: 1.0,
        "request_s": lambda p: float(p.run.scenario.batch),
        "token_s": lambda p: float(p.run.scenario.batch * p.run.scenario.prompt),
        "host_kernel_s": lambda p: 0.0 if p.graph else p.kernels["prefill"],
        "host_layer_graph_s": lambda p: float(p.layers) if p.graph else 0.0,
    }
    early = [p for p in points if p.busy.get("prefill", 1.0) < HOST_BOUND]
    return _submitted(early, steps, prefill)


def _decode_terms(points: Sequence[Point]) -> dict[str, Ceiling]:
    waiting = [p for p in points if _waits(p)]
    if not waiting:
        return {}
    rows = _decode_rows(waiting[0].run.engine)
    return _regress(waiting, [p.measured_s["decode"] / p.slower for p in waiting], rows, "decode steps, host-bound")


def _decode_rows(engine: str) -> Rows:
    if engine == "vllm":
        return {"host_step_s": lambda p: 1.0, "host_seq_s": lambda p: float(p.run.scenario.batch)}
    return {"host_step_s": lambda p: 1.0, "host_kernel_s": lambda p: p.kernels["decode"]}


def _submitted(points: Sequence[Point], steps: Mapping[str, Ceiling], rows: Rows) -> dict[str, Ceiling]:
    """What comes before the first step, and what a layer takes to launch. The step is scheduled like any other; then it
    is the longer of two queues: the host's, which launches layer by layer, and the device's. Which one is longer rests
    on the terms that are sought, so they are sought again until it stays."""
    found: dict[str, Ceiling] = {}
    whole = [p.measured_s["prefill"] / p.slower for p in points]
    device = [p.device_s["prefill"] / p.slower for p in points]
    waits = [True] * len(points)
    for _ in range(ROUNDS):
        known = [_scheduled(steps, p) + (0.0 if waiting else d) for p, waiting, d in zip(points, waits, device)]
        alone = {id(p) for p, waiting in zip(points, waits) if not waiting}
        apart = {name: partial(_unless, alone, row) if name in LAUNCHED else row for name, row in rows.items()}
        rest = [w - k for w, k in zip(whole, known)]
        found = _regress(points, rest, apart, "prompts until the first token, host-bound", whole, known)
        now = [_launched(found, rows, p) > d for p, d in zip(points, device)]
        if now == waits:
            break
        waits = now
    return found


def _unless(alone: set[int], row: Callable[[Point], float], p: Point) -> float:
    return 0.0 if id(p) in alone else row(p)


def _launched(terms: Mapping[str, Ceiling], rows: Rows, p: Point) -> float:
    return sum(terms[name].value * rows[name](p) for name in LAUNCHED if name in rows)


def _scheduled(steps: Mapping[str, Ceiling], p: Point) -> float:
    """What the host takes for a step of graphs at the middling pace."""
    each = steps["host_seq_s"].value if "host_seq_s" in steps else 0.0
    return steps["host_step_s"].value + each * p.run.scenario.batch


def _regress(
    points: Sequence[Point],
    seconds: Sequence[float],
    rows: Rows,
    method: str,
    whole: Sequence[float] = (),
    known: Sequence[float] = (),
) -> dict[str, Ceiling]:
    """Non-negative terms with the least sum of errors (not squares: a busy host gives outliers), each over what is
    explained or over the `whole` that it is part of. The points' own spread around it, with what is `known` of them, is
    every term's interval."""
    if not points:
        return {}
    y, over = np.array(seconds), np.array(whole or seconds)
    a = np.array([[row(p) for row in rows.values()] for p in points])
    count, width = a.shape
    units = np.maximum(a.max(axis=0), 1e-30)  # terms of one size, since solvers have an absolute tolerance
    scaled, slack = a / units / over[:, None], np.eye(count)
    least = linprog(
        np.concatenate([np.zeros(width), np.ones(count)]),
        A_ub=np.block([[scaled, -slack], [-scaled, -slack]]),
        b_ub=np.concatenate([y / over, -y / over]),
    )
    found = least.x[:width] / units
    beside = np.array(known) if known else 0.0
    ratio = (y + beside) / np.maximum(a @ found + beside, 1e-9)
    low, high = (float(np.quantile(ratio, q)) for q in (0.05, 0.95))
    low, high = max(0.0, min(1.0, low)), max(1.0, high)
    text = f"{len(points)} {method}; interval: spread of single points"
    return {name: Ceiling(float(v), float(v) * low, float(v) * high, "s", text) for name, v in zip(rows, found)}


def _term(values: Sequence[float], method: str, unit: str = "s") -> Ceiling:
    low, middle, high = (stats.quantile(values, q) for q in (0.05, 0.5, 0.95))
    return Ceiling(middle, low, high, unit, f"{len(values)} points, median and 90 % of them: {method}")
