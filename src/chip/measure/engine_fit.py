"""From runs of calibration models to an engine's terms: those with which the predictor comes nearest to the runs.

Every run is predicted as `chip predict` does it, its operators from measured points, its steps played on the timeline;
the terms are what least squares of logarithms find, in which outliers count little, since a busy host is the noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from chip import artifact, codec, engines, hardware, runs, stats
from chip.artifact import Artifact
from chip.engine_profile import EngineProfile
from chip.engines.terms import ON_HOST, Terms
from chip.models import describe
from chip.predict.request import Options, setting
from chip.predict.stages import Stage
from chip.predict.steps import TimedSteps
from chip.runs import Run, Runs
from chip.types import Ceiling, ChipError

ROBUST_SCALE = 0.1  # error of a logarithm from which on a run counts less than its square
PRIOR_WEIGHT = 0.05  # pull of a term towards where it started from, for those that no run tells
CARD_WEIGHT = 2.0  # the same of a GPU's speed: gaps between kernels then come out as in captured steps, 0.3 us
DEVICE_BOUND = 0.9  # busy share of a step that tells of the device's terms, not of the host's
DEEP = 20  # layers of a calibration model that counts in full
START = Terms(0.4e-6, 30e-6, 3e-3, 0.15e-3, 1e-3, 20e-6, 5e-6, 15e-6, 0.1e-3, 0.15e-3)


class PhaseTiming(NamedTuple):
    """One phase of one run: as measured, and what predicts it."""

    subject: TimedSteps
    seconds: float
    slower: float  # launch latency of its host over the reference's
    busy: float | None
    host: int  # which of the hosts it ran on
    weight: float  # a deep model tells more of models than a shallow one: their layers do not all fit a CPU's caches


def from_files(paths: Sequence[Path], gpu: str, engine: str) -> tuple[EngineProfile, Artifact]:
    """What files of runs tell together, and the artifact of it, which names every run it was made from."""
    h, read = hardware.find(gpu), [runs.read(path) for path in paths]
    for path, (held, _) in zip(paths, read):
        device = held.environment.get("device")
        if h.profile is None or h.profile.device != device:
            raise ChipError(f"{path}: was measured on {device}, {gpu} is {h.title}; say its profile with --gpu")
    environment = read[0][0].environment
    profile, ids = fit([each for _, each in read], gpu, engine, str(environment.get("cpu", "")))
    return profile, artifact.new(EngineProfile.SCHEMA, codec.to_json(profile), environment, ids)


def fit(found: Sequence[Runs], gpu: str, engine: str, cpu: str) -> tuple[EngineProfile, list[str]]:
    """The profile, and the ids of the runs it was made from."""
    configs = {name: config for each in found for name, config in each.configs.items()}
    asked = [r for each in found for r in each.runs if r.status == "ok" and r.engine == engine and r.decodes]
    usable = _usable(asked, configs, engine)
    launch_ns = stats.median([r.tpot_launch_ns for r in usable]) if usable[0].launch_ns else 0.0
    host_of = {id(r): host for host, each in enumerate(found) for r in each.runs}
    timings = [t for r in usable for t in _timings(r, configs, gpu, launch_ns, host_of[id(r)])]
    names = engines.get(engine).TERMS
    terms, errors = _solve(timings, names)
    models = tuple(dict.fromkeys(r.model for r in usable))
    ceilings = {name: _ceiling(name, terms, timings, errors) for name in names}
    measured, version = hardware.find(gpu).profile, usable[0].engine_version
    device = measured.device if measured else gpu
    profile = EngineProfile(engine, version, device, cpu, models, ceilings, float(f"{launch_ns:.6g}"))
    return profile, [runs.id_of(r) for r in usable]


def _usable(asked: Sequence[Run], configs: Mapping[str, Mapping[str, Any]], engine: str) -> list[Run]:
    known = [r for r in asked if r.model in configs]
    depths = {configs[r.model].get("num_hidden_layers") or configs[r.model].get("n_layer") for r in known}
    if len(depths) < 2:
        raise ChipError(
            f"no two runs of {engine} differ in their layers: terms need models of two depths, which "
            f"`chip calibrate --engine {engine}` runs"
        )
    for what, seen in (
        ("versions", {r.engine_version for r in known}),
        ("number formats", {r.scenario.dtype for r in known}),
    ):
        if len(seen) > 1:
            raise ChipError(f"the runs of {engine} are of several {what}, {', '.join(sorted(seen))}: keep them apart")
    timed = [r for r in known if r.launch_ns]  # at a launch latency that was measured beside them
    return timed or known


def _timings(
    run: Run, configs: Mapping[str, Mapping[str, Any]], gpu: str, launch_ns: float, host: int
) -> list[PhaseTiming]:
    decoder = describe(dict(configs[run.model]), run.model, run.model)
    s = run.scenario
    held = setting(decoder, gpu, run.engine, s.dtype, s.tp, Options(Stage.POINTS))
    weight = min(1.0, decoder.layer_count / DEEP)
    found = []
    for phase, seconds, ns in (("prefill", run.ttft_s, run.ttft_launch_ns), ("decode", run.tpot_s, run.tpot_launch_ns)):
        subject = held.steps.subject(s, held.roof.memory_bytes, phase == "prefill")
        slower = ns / launch_ns if launch_ns and ns else 1.0
        found.append(PhaseTiming(subject, seconds, slower, run.busy.get(phase), host, weight))
    return found


def _scaled(terms: Terms, slower: float) -> Terms:
    return terms._replace(**{name: getattr(terms, name) * slower for name in ON_HOST})


def _solve(timings: Sequence[PhaseTiming], names: Sequence[str]) -> tuple[Terms, np.ndarray]:
    """The terms, and the logarithm of predicted over measured of each timing. Hosts differ in more than their launch
    latency, and GPUs of one kind in how fast they run: each machine has a factor of either, and the terms are of the
    machine in the middle of them."""
    at = np.array([getattr(START, n) for n in names])
    machines = sorted({t.host for t in timings})
    of_machine = np.array([machines.index(t.host) for t in timings])
    weights = np.array([t.weight for t in timings])
    sizes = [len(names), len(machines), len(machines)]  # terms over START, logarithms of hosts and of cards
    start, least = np.repeat([1.0, 0.0, 0.0], sizes), np.repeat([0.0, -np.inf, -np.inf], sizes)
    pull = np.repeat([PRIOR_WEIGHT, PRIOR_WEIGHT, CARD_WEIGHT], sizes)

    def made(p: np.ndarray) -> Terms:
        return Terms(**{n: float(v * a) for n, v, a in zip(names, p, at)})

    def errors(p: np.ndarray) -> np.ndarray:
        terms, hosts, cards = np.split(p, np.cumsum(sizes)[:2])
        tried = made(terms)
        slower = np.exp(hosts - hosts.mean())[of_machine] * [t.slower for t in timings]
        scale = np.exp(cards - cards.mean())[of_machine]
        found = [t.subject.seconds(_scaled(tried, s), c) for t, s, c in zip(timings, slower, scale)]
        return np.array([log(f / t.seconds) for f, t in zip(found, timings)])

    def residuals(p: np.ndarray) -> np.ndarray:
        return np.concatenate([weights * errors(p), pull * (p - start)])

    robust = {"loss": "soft_l1", "f_scale": ROBUST_SCALE}
    found = least_squares(residuals, start, bounds=(least, np.inf), diff_step=1e-3, **robust)
    terms_alone = found.x * start  # on the machine in the middle
    return made(terms_alone), errors(terms_alone)


def _ceiling(name: str, terms: Terms, timings: Sequence[PhaseTiming], errors: np.ndarray) -> Ceiling:
    """A term with the spread of the runs that it matters to: those that wait for the host, or those that do not."""
    host = name in ON_HOST
    mine = [e for t, e in zip(timings, errors) if t.busy is None or (t.busy < DEVICE_BOUND) == host]
    ratios = np.exp(-np.array(mine or errors))
    low, high = (float(np.quantile(ratios, q)) for q in (0.05, 0.95))
    value = float(f"{getattr(terms, name):.5g}")
    text = f"{len(mine)} prefills and decode steps of calibration models, {'' if host else 'not '}waiting for the host"
    return Ceiling(value, value * min(1.0, low), value * max(1.0, high), "s", text)
