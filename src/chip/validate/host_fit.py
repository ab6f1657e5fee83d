"""A host's few terms from one to three results of benchmarking clients on it: `chip calibrate --from`.

Three terms are fitted: what the host takes to launch a kernel, and how long steps of decodes alone, and with prompts,
take over those predicted. Each begins where nothing is known (the reference host, the predicted steps) and moves as far
as the results ask for against how far machines were seen to differ: a single run tells less than three at different
loads. Medians are fitted, where a file has them: a step that compiles a kernel is in the means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, hypot, log, sqrt
from typing import Any

from chip import engines
from chip.engines import profile as engine_profile
from chip.hardware import gpus
from chip.hardware.hosts import LATENCY
from chip.question import Question
from chip.simulator import tool_figures
from chip.simulator.machine import DECODES, LOOP, PROMPTS
from chip.simulator.setup import Fleet, behind_server, run, setup
from chip.simulator.simulation import system_of
from chip.simulator.surface import Factors
from chip.types import Ceiling, ChipError, HostProfile
from chip.validate.client_errors import system_for
from chip.validate.client_result import ClientResult

# How far off each figure of a simulation is where its host is known, as standard deviations: the median errors over
# recorded traffic (7.0 and 3.5 %, docs/simulate.md) and twice that of decode steps (1.3 %), over 0.6745.
ERRORS = {"ttft": 0.104, "tpot": 0.052, "itl": 0.039}
# How far apart machines with one kind of card are, as standard deviations of logarithms: launch latencies of 7.2 to
# 14.3 us (`engines.profile`), decode steps of one model from 4.70 to 5.03 ms; of prompts a little more, which draw more
# power.
SPREADS = (0.3, 0.04, 0.05)
SWEEPS = 20_000
STEP, ROUNDS, ENOUGH, Z90 = 0.06, 6, 1e-3, 1.645
# What a fit at one load leaves at another, the same way: of a host as where its latency was measured
OTHER_LOADS = (log(engine_profile.KNOWN_LATENCY) / Z90, ERRORS["itl"] / 2, ERRORS["tpot"])
METHOD = "fitted to results of benchmarking clients (chip calibrate --from)"
MOST_RUNS = 6


@dataclass(frozen=True, slots=True)
class FittedHost:
    host: HostProfile
    errors: tuple[tuple[ClientResult, Mapping[str, float], Mapping[str, float]], ...]  # before and after


def fit(results: Sequence[ClientResult], system: Mapping[str, Any], name: str) -> FittedHost:
    asked = [system_for(result, system) for result in results]
    if len({model_system[1]["gpu"] for model_system in asked}) > 1:
        raise ChipError("--from takes results of one machine; these are of several GPUs")
    gpu = str(asked[0][1]["gpu"])
    terms = engine_profile.find(gpus.find(gpu), "vllm")
    if terms is None or not terms.launch_ns:
        raise ChipError(f"nothing is known of vllm's host on {gpu}: there is nothing to fit")
    if any(engines.get(given["engine"]).server() is None for _, given in asked):
        raise ChipError("--from takes results of vLLM's server: nobody measured another one")
    questions = [system_of(model, given) for model, given in asked]

    def errors(x: Sequence[float]) -> list[dict[str, float]]:
        return [_errors(q, r, terms.launch_ns * exp(x[0]), x) for q, r in zip(questions, results)]

    x, spread = _least_squares(lambda at: _weighed(errors(at)), len(SPREADS))
    before, after = errors([0.0] * len(SPREADS)), errors(x)
    values = (terms.launch_ns * 1e-9 * exp(x[0]), exp(x[1]), exp(x[2]))
    found = {
        term: Ceiling(v, v * exp(-Z90 * s), v * exp(Z90 * s), unit, METHOD)
        for term, v, s, unit in zip(
            (LATENCY, DECODES, PROMPTS), values, map(hypot, spread, OTHER_LOADS), ("s", "1", "1")
        )
    }
    return FittedHost(HostProfile(name, "", found | loop_terms(results)), tuple(zip(results, before, after)))


def loop_terms(results: Sequence[ClientResult]) -> dict[str, Ceiling]:
    """What the server's event loop takes, where it was watched in more runs than there are terms."""
    work = [r.loop for r in results if r.loop]
    if len(work) <= len(LOOP):
        return {}
    seconds = least_squares([row[:-1] for row in work], [row[-1] for row in work])
    return {term: Ceiling(v, v, v, "s", f"{METHOD}: CPU seconds of its first thread") for term, v in zip(LOOP, seconds)}


def least_squares(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Non-negative, of relative errors: each row counts alike."""
    rows = [[v / s for v in row] for row, s in zip(rows, seconds)]
    x = [0.0] * len(rows[0])
    for _ in range(SWEEPS):
        for j in range(len(x)):
            rest = [1 - sum(v * x[k] for k, v in enumerate(row) if k != j) for row in rows]
            x[j] = max(0.0, sum(r[j] * y for r, y in zip(rows, rest)) / sum(r[j] ** 2 for r in rows))
    return x


def _errors(q: Question, result: ClientResult, launch_ns: float, x: Sequence[float]) -> dict[str, float]:
    """Logarithms of predicted over measured, of the figures that are fitted."""

    fleet = behind_server(Fleet(replace(q, launch_ns=launch_ns)))
    done = run(setup(fleet, Factors(exp(x[1]), exp(x[2]))), fleet, result.workload)
    predicted = tool_figures.figures_of(result.workload, done, 1.0, fleet.gpus, None)
    found = {}
    for metric in ERRORS:
        names = [f"{part}_{metric}_ms" for part in ("median", "mean")]
        name = next((n for n in names if result.figures.get(n) and predicted.get(n)), "")
        if name and not (metric == "itl" and name.startswith("mean")):  # that is TPOT's
            found[metric] = log(predicted[name] / result.figures[name])
    return found


def _weighed(errors: Sequence[Mapping[str, float]]) -> list[float]:
    return [value / ERRORS[name] for row in errors for name, value in row.items()]


def _least_squares(residuals: Any, n: int) -> tuple[list[float], list[float]]:
    """By Gauss and Newton, each unknown held near 0 by its spread: the values, and what is left of the spreads."""
    x = [0.0] * n
    here = residuals(x)
    matrix = [[0.0] * n for _ in range(n)]
    for _ in range(ROUNDS):
        slopes = []
        for j in range(n):
            there = residuals([v + STEP * (i == j) for i, v in enumerate(x)])
            slopes.append([(b - a) / STEP for a, b in zip(here, there)])
        matrix = [
            [sum(a * b for a, b in zip(slopes[i], slopes[j])) + (i == j) / SPREADS[i] ** 2 for j in range(n)]
            for i in range(n)
        ]
        pull = [-sum(a * b for a, b in zip(slopes[i], here)) - x[i] / SPREADS[i] ** 2 for i in range(n)]
        move = _solve(matrix, pull)
        cost = _cost(here, x)
        for _ in range(4):  # a step that makes it worse is halved
            tried = [a + b for a, b in zip(x, move)]
            there = residuals(tried)
            if _cost(there, tried) <= cost:
                break
            move = [b / 2 for b in move]
        else:
            break
        x, here = tried, there
        if max(abs(b) for b in move) < ENOUGH:
            break
    unit = [_solve(matrix, [float(i == j) for j in range(n)]) for i in range(n)]
    return x, [sqrt(unit[i][i]) for i in range(n)]


def _cost(residuals: Sequence[float], x: Sequence[float]) -> float:
    return sum(r * r for r in residuals) + sum((v / s) ** 2 for v, s in zip(x, SPREADS))


def _solve(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """A small system of equations, by elimination."""
    rows = [[*row, b] for row, b in zip(matrix, right)]
    n = len(rows)
    for i in range(n):
        rows[i] = [v / rows[i][i] for v in rows[i]]
        for k in range(n):
            if k != i:
                rows[k] = [a - rows[k][i] * b for a, b in zip(rows[k], rows[i])]
    return [row[-1] for row in rows]
