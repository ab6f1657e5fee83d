"""From runs of calibration models to an engine's terms: those that bring predictions of the runs nearest to the runs.

Every run is predicted as `chip predict` does it: its operators from measured points, its steps played on the timeline.
The terms come from least squares of logarithms. Outliers count little in it, since the noise is a busy host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from chip import engines, stats
from chip.decoders import describe
from chip.engines.profile import EngineProfile
from chip.engines.timeline import ON_HOST, Terms
from chip.files import artifact, codec, runs
from chip.files.artifact import Artifact
from chip.files.runs import Run, Runs
from chip.hardware import gpus
from chip.predictor.request import setting
from chip.predictor.stages import Stage
from chip.predictor.steps import PhaseSteps
from chip.question import Question
from chip.types import Ceiling, ChipError

ROBUST_SCALE = 0.1  # a run whose logarithm is off by more than this counts less than its square
PRIOR_WEIGHT = 0.05  # pulls a term towards its start, so that one that no run tells stays there
CARD_WEIGHT = 2.0  # the same for a GPU's speed: gaps between kernels then come out as in captured steps, 0.3 us
DEVICE_BOUND = 0.9  # a step whose device is busy for this share tells of the device's terms, not of the host's
DEEP = 20  # calibration models with fewer layers count less
START = Terms(0.4e-6, 30e-6, 3e-3, 0.15e-3, 1e-3, 20e-6, 5e-6, 15e-6, 0.1e-3, 0.15e-3)


class PhaseTiming(NamedTuple):
    """The prefill or the decode of one run: its measured time, and what predicts it."""

    subject: PhaseSteps
    seconds: float
    slower: float  # launch latency of its host over that which the terms hold at
    busy: float | None  # share of the time that the device worked
    host: int  # which of the hosts it ran on
    weight: float  # a deep model tells more than a shallow one, whose layers all fit a CPU's caches


def from_files(paths: Sequence[Path], gpu: str, engine: str) -> tuple[EngineProfile, Artifact]:
    """The profile that files of runs give together, and its artifact, which names every run it was made from."""
    h, read = gpus.find(gpu), [runs.read(path) for path in paths]
    for path, (artifact_read, _) in zip(paths, read):
        device = artifact_read.environment.get("device")
        if h.profile is None or h.profile.device != device:
            raise ChipError(f"{path}: was measured on {device}, {gpu} is {h.title}; say its profile with --gpu")
    environment = read[0][0].environment
    profile, ids = fit([each for _, each in read], gpu, engine, str(environment.get("cpu", "")))
    return profile, artifact.new(EngineProfile.SCHEMA, codec.to_json(profile), environment, ids)


def fit(files: Sequence[Runs], gpu: str, engine: str, cpu: str) -> tuple[EngineProfile, list[str]]:
    """The profile, and the ids of the runs it was made from. Each of the files that were found is of one host."""
    configs = {name: config for each in files for name, config in each.configs.items()}
    of_engine = [(host, r) for host, each in enumerate(files) for r in each.runs if r.engine == engine]
    done = [(host, r) for host, r in of_engine if r.status == "ok" and r.decodes and r.model in configs]
    _check([r for _, r in done], configs, engine)
    used = [(host, r) for host, r in done if r.launch_ns] or done  # those with a launch latency beside them, if any
    launch_ns = stats.median([r.tpot_launch_ns for _, r in used]) if used[0][1].launch_ns else 0.0
    timings = [t for host, r in used for t in _timings(r, configs[r.model], gpu, launch_ns, host)]
    terms, errors = _solve(timings, engines.get(engine).TERMS)
    ceilings = {name: _ceiling(name, terms, timings, errors) for name in engines.get(engine).TERMS}
    measured, version = gpus.find(gpu).profile, used[0][1].engine_version
    device, models = measured.device if measured else gpu, tuple(dict.fromkeys(r.model for _, r in used))
    profile = EngineProfile(engine, version, device, cpu, models, ceilings, float(f"{launch_ns:.6g}"))
    return profile, [runs.id_of(r) for _, r in used]


def _check(known: Sequence[Run], configs: Mapping[str, Mapping[str, Any]], engine: str) -> None:
    """Refuses runs that tell no terms, or that do not belong together."""
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


def _timings(run: Run, config: Mapping[str, Any], gpu: str, launch_ns: float, host: int) -> list[PhaseTiming]:
    """Prefill and decode of a run. `launch_ns`: the launch latency that the terms will hold at."""
    s, decoder = run.scenario, describe(dict(config), run.model, run.model)
    predictor = setting(Question(decoder, gpu, run.engine, s.dtype, "", s.tp), Stage.POINTS)
    weight = min(1.0, decoder.layer_count / DEEP)
    timings = []
    for phase, seconds, ns in (("prefill", run.ttft_s, run.ttft_launch_ns), ("decode", run.tpot_s, run.tpot_launch_ns)):
        subject = predictor.steps.phase_steps(s, phase == "prefill")
        slower = ns / launch_ns if launch_ns and ns else 1.0
        timings.append(PhaseTiming(subject, seconds, slower, run.busy.get(phase), host, weight))
    return timings


def _solve(timings: Sequence[PhaseTiming], names: Sequence[str]) -> tuple[Terms, np.ndarray]:
    """The terms, and the logarithm of predicted over measured time of each timing.

    Hosts differ in more than their launch latency, and GPUs of one kind differ in speed. So each machine has a factor
    for its host and one for its GPU, fitted together with the terms, which are of the machine in the middle.
    """
    at = np.array([getattr(START, n) for n in names])
    machines, of_machine = np.unique([t.host for t in timings], return_inverse=True)
    weights = np.array([t.weight for t in timings])
    sizes = [len(names), len(machines), len(machines)]  # terms over START, logarithms of hosts and of cards
    start, least = np.repeat([1.0, 0.0, 0.0], sizes), np.repeat([0.0, -np.inf, -np.inf], sizes)
    pull = np.repeat([PRIOR_WEIGHT, PRIOR_WEIGHT, CARD_WEIGHT], sizes)

    def terms_of(p: np.ndarray) -> Terms:
        return Terms(**{n: float(v * a) for n, v, a in zip(names, p, at)})

    def errors(p: np.ndarray) -> np.ndarray:
        terms, hosts, cards = np.split(p, np.cumsum(sizes)[:2])
        first = terms_of(terms)
        slower = np.exp(hosts - hosts.mean())[of_machine] * [t.slower for t in timings]
        scale = np.exp(cards - cards.mean())[of_machine]
        predicted = [t.subject.seconds(first.on_host(s), c) for t, s, c in zip(timings, slower, scale)]
        return np.array([log(f / t.seconds) for f, t in zip(predicted, timings)])

    def residuals(p: np.ndarray) -> np.ndarray:
        return np.concatenate([weights * errors(p), pull * (p - start)])

    robust = {"loss": "soft_l1", "f_scale": ROBUST_SCALE}
    solution = least_squares(residuals, start, bounds=(least, np.inf), diff_step=1e-3, **robust)
    terms_alone = solution.x * start  # no host's and no card's factor: the machine in the middle
    return terms_of(terms_alone), errors(terms_alone)


def _ceiling(name: str, terms: Terms, timings: Sequence[PhaseTiming], errors: np.ndarray) -> Ceiling:
    """A term with its interval: the spread of the runs that it matters to, which wait for the host or do not."""
    host = name in ON_HOST
    mine = [e for t, e in zip(timings, errors) if t.busy is None or (t.busy < DEVICE_BOUND) == host]
    ratios = np.exp(-np.array(mine or errors))
    low, high = (float(np.quantile(ratios, q)) for q in (0.05, 0.95))
    value = float(f"{getattr(terms, name):.5g}")
    text = f"{len(mine)} prefills and decode steps of calibration models, {'' if host else 'not '}waiting for the host"
    return Ceiling(value, value * min(1.0, low), value * max(1.0, high), "s", text)
