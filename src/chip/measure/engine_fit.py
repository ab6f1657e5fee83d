"""From runs of small models, two of them at least that differ only in their layers, to an engine's terms.

What grows with the layers and what does not are told apart by the two depths; what the operators take is predicted from
tables. Nothing is negative. An interval is the spread of single points around the fit, since a busy host is the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from chip import artifact, codec, engine_profile, hardware, runs, stats
from chip.artifact import Artifact
from chip.engine_profile import EngineProfile
from chip.measure import host_fit
from chip.measure.engine_points import Point, pairs, point, usable
from chip.measure.host_fit import Host, scheduled
from chip.runs import Runs
from chip.types import Ceiling, ChipError

DEVICE_BOUND = 0.9
HOST_AWAY = 0.9  # of a step: where the host needs more, its delays come through
ATTENTION = "flash::"  # in the names of vLLM's attention kernels
GRAPHS = "hf-graph"  # whose gaps stand in where none could be measured
LOWERED = 0.3  # prompts that lower the clock less tell nothing of how it comes back


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
    host = host_fit.fit([point(r, hosts[id(r)], configs, gpu) for r in usable(asked, configs, engine)])
    points = host.points
    busy = _device_bound(points, host)
    terms = {**_device_terms(points, busy, gpu, bool(host.terms)), **host.terms}
    if not terms and not host.launch_ns and any(p.busy for p in points):
        raise ChipError(f"the runs of {engine} have no pace of the host between repeats (launch_ns): measure them anew")
    if not terms:
        raise ChipError(f"the runs of {engine} do not tell how long the device worked: may the profiler be used here?")
    version = points[0].run.engine_version
    models = tuple(dict.fromkeys(p.run.model for p in points))
    measured = hardware.find(gpu).profile
    assert measured is not None
    profile = EngineProfile(engine, version, measured.device, cpu, models, terms, host.launch_ns, host.families)
    borrowed = _borrowed(busy, gpu) if "kernel_s" in terms else ()
    return profile, [*(runs.id_of(p.run) for p in points), *borrowed]


def _borrowed(busy: Sequence[Point], gpu: str) -> tuple[str, ...]:
    """Ids of the runs behind gaps that stand in where `busy` tells none."""
    path = engine_profile.path_for(hardware.find(gpu), GRAPHS)
    if pairs(busy) or not path.is_file():
        return ()
    return artifact.read(path, EngineProfile.SCHEMA).inputs


def _device_bound(points: Sequence[Point], host: Host) -> list[Point]:
    """Those that the device set the pace of: under the profiler, and with the host far from setting it."""
    busy = [p for p in points if p.busy.get("decode", 0.0) >= DEVICE_BOUND]
    if not host.terms:
        return busy
    return [p for p in busy if scheduled(host.terms, p) * p.slower["decode"] <= HOST_AWAY * p.measured_s["decode"]]


def _device_terms(points: Sequence[Point], busy: Sequence[Point], gpu: str, hosted: bool) -> dict[str, Ceiling]:
    """What decode steps take beyond their operators: gaps that grow with the kernels, attention that is slower
    than alone, and what a step has around the model.

    Where the host was too slow for the device ever to be the longer, gaps cannot be told from waiting: those of the
    same GPU's graphs stand in, measured with hf-graph, and the kernels under the profiler tell the rest.
    """
    around = _around(points)
    if pairs(busy):
        return _beyond_operators(busy, around)
    graphs = engine_profile.find(hardware.find(gpu), GRAPHS)
    gap = graphs.terms["kernel_s"] if graphs else Ceiling(0.0, 0.0, 0.0, "s", "not measured")
    return (
        {"kernel_s": replace(gap, method=f"of {GRAPHS}: {gap.method}"), **around}
        if around or (graphs and hosted)
        else {}
    )


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
    if told := [(inside, alone) for inside, alone in attention if inside and alone]:
        shares = [max(0.0, inside / alone - 1) for inside, alone in told]
        of_all = max(0.0, sum(inside for inside, _ in told) / sum(alone for _, alone in told) - 1)
        found = _term(shares, "attention's kernels in decode steps over what they take alone, all together", "1")
        low, high = min(found.low, of_all), max(found.high, of_all)
        terms["attention_share"] = replace(found, value=of_all, low=low, high=high)
    if back := [_recovery(p) / p.lowered for p in points if p.lowered >= LOWERED]:
        terms["recovery_s"] = _term(back, "first half of the decode steps beyond the second half")
    whole = [p.measured_s["decode"] for p in points]
    slower = [max(0.0, inside - alone) if inside else 0.0 for inside, alone in attention]
    alone = [p.device_s["decode"] + s + _recovery(p) / len(p.run.step_ns[0]) for p, s in zip(points, slower)]
    beyond = [w - a for w, a in zip(whole, alone)]
    if around:
        step = around["step_s"].value
        each = [max(0.0, b - step) / p.kernels["decode"] for b, p in zip(beyond, points)]
        return {**terms, "kernel_s": _term(each, "decode step beyond its operators, for each kernel")}
    rows: dict[str, Callable[[Point], float]] = {"kernel_s": lambda p: p.kernels["decode"], "step_s": lambda p: 1.0}
    return {
        **terms,
        **host_fit.regress(points, beyond, rows, "decode steps beyond their operators, device-bound", whole),
    }


def _recovery(p: Point) -> float:
    """What the steps after a long prompt take beyond the later ones. The first and the last are left out: their stamps
    wait for what an engine does once for each request."""
    if p.lowered < LOWERED:
        return 0.0
    steps = [stats.median(each) * 1e-9 for each in zip(*p.run.step_ns)][1:-1]
    half = len(steps) // 2
    later = stats.median(steps[half:])
    return max(0.0, sum(s - later for s in steps[:half]))


def _term(values: Sequence[float], method: str, unit: str = "s") -> Ceiling:
    low, middle, high = (stats.quantile(values, q) for q in (0.05, 0.5, 0.95))
    return Ceiling(middle, low, high, unit, f"{len(values)} points, median and 90 % of them: {method}")
