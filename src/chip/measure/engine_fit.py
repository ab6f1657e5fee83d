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
from chip.predict.request import composer, predict
from chip.predict.stages import Stage
from chip.runs import Run, Runs
from chip.types import Ceiling, ChipError, Scenario

HOST_BOUND = 0.7  # of the step the device worked: below it the host sets the pace
DEVICE_BOUND = 0.9
GRAPHS = "hf-graph"  # whose gaps stand in where none could be measured
# terms of the host's queue in a prefill; the others come before it
LAUNCHED = ("host_layer_s", "host_experts_s", "host_layer_graph_s")
ROUNDS = 8
LOWERED = 0.3  # prompts that lower the clock less tell nothing of how it comes back
ONE_QUEUE = {"prefill": 1.0, "decode": 1.0}  # a CPU is host and device at once: it never waits for itself


class Point(NamedTuple):
    run: Run
    base: str  # its model but for the depth
    layers: int
    expert_layers: int
    device_s: dict[str, float]  # "prefill", "decode": what the operators alone should take
    kernels: dict[str, float]
    lowered: float  # how far its prompt lowered the clock
    busy: Mapping[str, float]  # share of each phase that the device worked, where it is known

    @property
    def measured_s(self) -> dict[str, float]:
        return {"prefill": self.run.ttft_s, "decode": self.run.tpot_s}

    def kernel_time_s(self, phase: str) -> float | None:
        """What its kernels took under the profiler, where the run tells."""
        table = self.run.settings.get("kernels", {}).get(phase)
        return sum(row[2] for row in table) * 1e-6 if table else None

    @property
    def graph(self) -> bool:
        """Whether its prefill ran as (pieces of) graphs."""
        return bool(self.kernels["graphed"])


def from_files(paths: Sequence[Path], gpu: str, engine: str) -> tuple[EngineProfile, Artifact]:
    """What files of runs tell together, and the artifact of it: it names every run it was made from. Several are of
    several hosts; the terms are then of a middling one, and their intervals of all."""
    h, read = hardware.find(gpu), [runs.read(path) for path in paths]
    for path, (held, _) in zip(paths, read):
        device = held.environment.get("device")
        if h.profile is None or h.profile.device != device:
            raise ChipError(f"{path}: was measured on {device}, {gpu} is {h.title}; say its profile with --gpu")
    environment = read[0][0].environment
    found = replace(
        read[0][1],
        runs=tuple(r for _, each in read for r in each.runs),
        configs={name: config for _, each in read for name, config in each.configs.items()},
    )
    profile, ids = fit(found, gpu, engine, str(environment.get("cpu", "")))
    return profile, artifact.new(EngineProfile.SCHEMA, codec.to_json(profile), environment, ids)


def fit(found: Runs, gpu: str, engine: str, cpu: str) -> tuple[EngineProfile, list[str]]:
    """The profile, and the ids of the runs it was made from."""
    judged = _of_two_depths(
        [r for r in found.runs if r.status == "ok" and r.engine == engine and r.decodes], found.configs, engine
    )
    points = [_point(r, found.configs, gpu) for r in judged]
    terms = {**_device_terms(points, gpu), **_host_terms(points)}
    if not terms:
        raise ChipError(f"the runs of {engine} do not tell how long the device worked: may the profiler be used here?")
    version = points[0].run.engine_version
    models = tuple(dict.fromkeys(p.run.model for p in points))
    measured = hardware.find(gpu).profile
    assert measured is not None
    profile = EngineProfile(engine, version, measured.device, cpu, models, terms)
    borrowed = _borrowed(points, gpu) if "kernel_s" in terms else ()
    return profile, [*(runs.id_of(p.run) for p in points), *borrowed]


def _borrowed(points: Sequence[Point], gpu: str) -> tuple[str, ...]:
    """Ids of the runs behind gaps that stand in for those of `points`."""
    path = engine_profile.path_for(hardware.find(gpu), GRAPHS)
    if _device_bound(points) or not path.is_file():
        return ()
    return artifact.read(path, EngineProfile.SCHEMA).inputs


def _device_bound(points: Sequence[Point]) -> list[Point]:
    return [p for p in points if p.busy.get("decode", 0.0) >= DEVICE_BOUND]


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


def _point(run: Run, configs: Mapping[str, Mapping[str, Any]], gpu: str) -> Point:
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
        c.expert_layers,
        {"prefill": made.prefill.seconds, "decode": made.decode.seconds},
        {"prefill": first.kernels, "decode": step.kernels / step.steps, "graphed": first.graph_layers},
        c.lowered(made.prefill),
        ONE_QUEUE if _is_cpu(gpu) else run.busy,
    )


def _is_cpu(gpu: str) -> bool:
    profile = hardware.find(gpu).profile
    return profile is not None and profile.kind == "cpu"


def _pairs(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """(shallow, deep) of one model and scenario."""
    by: dict[tuple[Scenario, str], list[Point]] = {}
    for p in sorted(points, key=lambda p: p.layers):
        by.setdefault((p.run.scenario, p.base), []).append(p)
    return [(same[0], same[-1]) for same in by.values() if same[0].layers < same[-1].layers]


def _device_terms(points: Sequence[Point], gpu: str) -> dict[str, Ceiling]:
    """Gaps from what a layer takes beyond its operators, and what a step has around the model.

    Where the host was too slow for the device ever to be the longer, gaps cannot be told from waiting: those of the
    same GPU's graphs stand in, measured with hf-graph, and the kernels under the profiler tell the rest.
    """
    busy = _device_bound(points)
    if busy:
        gap = _term(_gaps(busy), "decode of two depths beyond the operators of the added layers, for each kernel")
        beyond = [p.measured_s["decode"] - p.device_s["decode"] - gap.value * p.kernels["decode"] for p in busy]
    else:
        graphs = engine_profile.find(hardware.find(gpu), GRAPHS)
        gap = graphs.terms["kernel_s"] if graphs else Ceiling(0.0, 0.0, 0.0, "s", "not measured")
        gap = replace(gap, method=f"of {GRAPHS}: {gap.method}")
        told = [(p, p.kernel_time_s("decode")) for p in points]
        beyond = [seconds - p.device_s["decode"] for p, seconds in told if seconds is not None]
    if not beyond:
        return {}
    around = _term([max(0.0, s) for s in beyond], "decode step beyond its operators and gaps")
    back = [_recovery(p) / p.lowered for p in busy if p.lowered >= LOWERED]
    recovery = {"recovery_s": _term(back, "first half of the decode steps beyond the second half")} if back else {}
    return {"kernel_s": gap, "step_s": around, **recovery}


def _recovery(p: Point) -> float:
    """What the steps after a prompt take beyond the later ones. The first and the last are left out: their stamps wait
    for what an engine does once for each request."""
    steps = [stats.median(each) * 1e-9 for each in zip(*p.run.step_ns)][1:-1]
    half = len(steps) // 2
    later = stats.median(steps[half:])
    return max(0.0, sum(s - later for s in steps[:half]))


def _gaps(points: Sequence[Point]) -> list[float]:
    out = []
    for shallow, deep in _pairs(points):
        beyond = (deep.measured_s["decode"] - deep.device_s["decode"]) - (
            shallow.measured_s["decode"] - shallow.device_s["decode"]
        )
        out.append(max(0.0, beyond / (deep.kernels["decode"] - shallow.kernels["decode"])))
    return out or [0.0]


def _host_terms(points: Sequence[Point]) -> dict[str, Ceiling]:
    waiting = [p for p in points if p.busy.get("decode", 1.0) < HOST_BOUND]
    if not waiting:
        return {}
    if waiting[0].run.engine == "vllm":
        return _serving(waiting)
    rows: dict[str, Callable[[Point], float]] = {
        "host_step_s": lambda p: 1.0,
        "host_kernel_s": lambda p: p.kernels["decode"],
    }
    return _regress(waiting, [p.measured_s["decode"] for p in waiting], rows, "eager decode steps, host-bound")


def _serving(points: Sequence[Point]) -> dict[str, Ceiling]:
    """vLLM: a decode step is scheduled and launched as one graph; a prefill is also submitted, and launched layer by
    layer."""
    decode: dict[str, Callable[[Point], float]] = {
        "host_step_s": lambda p: 1.0,
        "host_seq_s": lambda p: float(p.run.scenario.batch),
    }
    steps = _regress(points, [p.measured_s["decode"] for p in points], decode, "decode steps, host-bound")
    prefill: dict[str, Callable[[Point], float]] = {
        "first_s": lambda p: 1.0,
        "request_s": lambda p: float(p.run.scenario.batch),
        "token_s": lambda p: float(p.run.scenario.batch * p.run.scenario.prompt),
        "host_layer_s": lambda p: 0.0 if p.graph else float(p.layers),
        "host_experts_s": lambda p: 0.0 if p.graph else float(p.expert_layers),
        "host_layer_graph_s": lambda p: float(p.layers) if p.graph else 0.0,
    }
    early = [p for p in points if p.busy.get("prefill", 1.0) < HOST_BOUND]
    if not any(p.expert_layers and not p.graph for p in early):
        del prefill["host_experts_s"]
    return {**steps, **_submitted(early, steps, prefill)}


def _submitted(
    points: Sequence[Point], steps: Mapping[str, Ceiling], rows: Mapping[str, Callable[[Point], float]]
) -> dict[str, Ceiling]:
    """What comes before the first step, and what a layer takes to launch. The step is the longer of two queues: the
    host's, scheduled like any other step and launched layer by layer, and the device's. Which one is longer rests on
    the terms that are sought, so they are sought again until it stays."""
    found: dict[str, Ceiling] = {}
    waits = [True] * len(points)
    for _ in range(ROUNDS):
        y = [
            max(1e-6, p.measured_s["prefill"] - (_scheduled(steps, p) if waiting else p.device_s["prefill"]))
            for p, waiting in zip(points, waits)
        ]
        alone = {id(p) for p, waiting in zip(points, waits) if not waiting}
        apart = {name: partial(_unless, alone, row) if name in LAUNCHED else row for name, row in rows.items()}
        found = _regress(points, y, apart, "prompts until the first token, host-bound")
        now = [_launched(found, rows, p) + _scheduled(steps, p) > p.device_s["prefill"] for p in points]
        if now == waits:
            break
        waits = now
    return found


def _unless(alone: set[int], row: Callable[[Point], float], p: Point) -> float:
    return 0.0 if id(p) in alone else row(p)


def _launched(terms: Mapping[str, Ceiling], rows: Mapping[str, Callable[[Point], float]], p: Point) -> float:
    return sum(terms[name].value * rows[name](p) for name in LAUNCHED if name in rows)


def _scheduled(steps: Mapping[str, Ceiling], p: Point) -> float:
    return steps["host_step_s"].value + steps["host_seq_s"].value * p.run.scenario.batch


def _regress(
    points: Sequence[Point], seconds: Sequence[float], rows: Mapping[str, Callable[[Point], float]], method: str
) -> dict[str, Ceiling]:
    """Non-negative terms with the least sum of relative errors (not squares: a busy host gives outliers); the points'
    own spread around it is every term's interval."""
    if not points:
        return {}
    y = np.array(seconds)
    a = np.array([[row(p) for row in rows.values()] for p in points])
    count, width = a.shape
    scaled, slack = a / y[:, None], np.eye(count)
    least = linprog(
        np.concatenate([np.zeros(width), np.ones(count)]),
        A_ub=np.block([[scaled, -slack], [-scaled, -slack]]),
        b_ub=np.concatenate([np.ones(count), -np.ones(count)]),
    )
    found = least.x[:width]
    ratio = y / np.maximum(a @ found, 1e-9)
    low, high = (float(np.quantile(ratio, q)) for q in (0.05, 0.95))
    low, high = min(1.0, low), max(1.0, high)
    text = f"{len(points)} {method}; interval: spread of single points"
    return {name: Ceiling(float(v), float(v) * low, float(v) * high, "s", text) for name, v in zip(rows, found)}


def _term(values: Sequence[float], method: str) -> Ceiling:
    middle = stats.median(values)
    return Ceiling(middle, min(values), max(values), "s", f"{len(values)} points, median, least and most: {method}")
