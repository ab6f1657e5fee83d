"""Live traffic over a range of request rates, as `chip simulate` answers it, the highest within the limits, as
`chip plan` does, and what the engine holds at one of them.

Without rates the engine is first given all requests at once: what it then serves is its limit, and the rates are shares
of it, and the highest within the limits. Of rates that are given, the first is looked at closer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from chip import engines
from chip.question import ANYWHERE, DEFAULTS, FIELDS, Question
from chip.show.serve.names import PASTED, question_of
from chip.show.serve.ranking import limits_of
from chip.simulator import synthetic, workload
from chip.simulator.answer import Simulation
from chip.simulator.highest_rate import HighestRate, Promise, finished, highest_rate
from chip.simulator.plan import REQUESTS, supply
from chip.simulator.setup import SEED, Fleet
from chip.simulator.simulation import simulate
from chip.simulator.slo import Target
from chip.types import ChipError

SCHEMA = "chip.traffic_curve/1"
SHARES = (0.1, 0.3, 0.5, 0.65, 0.8, 0.9, 1.0, 1.1)  # of what is served when all requests come at once
PERCENTILE = "p99"  # of the requests keeps each limit
MOST_REQUESTS, MOST_RATES = 5000, 16
GIVEN = "poisson"  # with the prompt and output of the question
ASKED: dict[str, Any] = {
    **{key: DEFAULTS[key] for key in ("gpu", "engine", "dtype", "kv_dtype", "tp", "pp", "ep", "prompt", "output")},
    "engine_settings": {}, "workload": GIVEN, "requests": REQUESTS, "rates": [], "limits": {},
}  # fmt: skip


def workloads() -> list[str]:
    return [GIVEN, *workload.names()]


def traffic(question: Any) -> dict[str, Any]:
    """`{"model": "llama-3.1-8b", "gpu": "h200", "workload": "azure-conversation", "limits": {"ttft_ms": 500}}`."""
    asked, q = _understood(question)
    limits = limits_of(asked["limits"])
    goals = ",".join(f"{name.removesuffix('_ms')}={value}ms" for name, value in limits.items())
    about = {"workload": workload_of(asked), "requests": asked["requests"], "goals": goals}
    curve = _curve(q, json.dumps([about, _rates(asked["rates"]), limits]))
    return {**curve, "prompt": asked["prompt"], "output": asked["output"]}


@lru_cache(maxsize=64)
def _curve(q: Question, traffic: str) -> dict[str, Any]:
    """Of what was understood, the traffic as JSON: the same question again costs nothing."""
    about, rates, limits = json.loads(traffic)
    saturated = highest = None
    least_s = 0.0
    if not rates:
        saturated = _simulated(q, about, 0.0).requests_per_s
        rates = [float(f"{share * saturated:.2g}") for share in SHARES]
        if limits and (best := _highest(q, about, limits)).at and best.rate_per_s:
            highest, least_s = best.rate_per_s, best.at.requests / best.rate_per_s
            rates = sorted({*rates, highest})
    of = {rate: {**about, "requests": max(about["requests"], round(rate * least_s))} for rate in rates}
    found = {rate: _simulated(q, of[rate], rate).json() for rate in rates}
    chosen = highest or rates[0]
    return {
        "schema": SCHEMA,
        **{"model": q.model.name, "gpu": q.gpu, "engine": q.engine, "dtype": q.dtype, "tp": q.tp},
        **about,
        "limits": limits,
        "saturated_requests_per_s": saturated and float(f"{saturated:.7g}"),
        "highest_rate_within_limits": highest,
        "simulations": list(found.values()),
        "timeline_rate": chosen,
        "timeline": _simulated(q, of[chosen], chosen, timeline=True).timeline_json(),
    }


def _highest(q: Question, about: Mapping[str, Any], limits: Mapping[str, float]) -> HighestRate:
    w = supply(about["workload"], about["requests"], SEED)
    return finished(highest_rate(Promise(Fleet(q), w, about["requests"], targets_of(limits)), intervals=False))


def targets_of(limits: Mapping[str, float]) -> tuple[Target, ...]:
    return tuple(Target(name.removesuffix("_ms"), PERCENTILE, ms / 1e3) for name, ms in limits.items())


def engines_that_serve() -> list[str]:
    """Those whose live traffic can be simulated."""
    return [name for name in engines.names() if type(engines.get(name)).scheduler is not engines.Engine.scheduler]


def _simulated(q: Question, about: Mapping[str, Any], rate: float, timeline: bool = False) -> Simulation:
    system = {name: getattr(q, name) for name in FIELDS}
    return simulate(q.model, rate=rate, draws=0, timeline=timeline, **about, **system)


def _understood(question: Any) -> tuple[dict[str, Any], Question]:
    if not isinstance(question, Mapping):
        raise ChipError(f"traffic is asked for as a JSON object, got {type(question).__name__}")
    given = dict(question)
    config = given.pop("config", None)
    if config is not None:
        given.setdefault("model", PASTED)
    for key in given:
        if key != "model" and key not in ASKED:
            raise ChipError(f"unknown key {str(key)[:80]!r}; known: model, config, {', '.join(ASKED)}")
    asked = {**ASKED, **given}
    q, _ = question_of({key: value for key, value in asked.items() if key in ANYWHERE}, config)
    q = q.with_formats()
    count = asked["requests"]
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MOST_REQUESTS:
        raise ChipError(f"requests must be a whole number from 1 to {MOST_REQUESTS}")
    return asked, q


def workload_of(asked: Mapping[str, Any]) -> str:
    """A bundled trace, or synthetic traffic; never a file."""
    name = asked["workload"]
    if name == GIVEN:
        return f"{GIVEN}:prompt={asked['prompt']},output={asked['output']}"
    if name in workload.names():
        return str(name)
    if isinstance(name, str) and name.partition(":")[0] in synthetic.KINDS:
        described = synthetic.parse(name)
        if described.kind == "closed":
            raise ChipError("users of a closed loop have no request rate; `chip simulate` answers for them")
        return name
    raise ChipError(
        f"no workload {str(name)[:80]!r}; known: {', '.join(workloads())}, or poisson:prompt=512,output=128"
    )


def _rates(given: Any) -> list[float]:
    if not isinstance(given, list) or len(given) > MOST_RATES:
        raise ChipError(f"rates must be a list of at most {MOST_RATES} request rates")
    for rate in given:
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < 1e6:
            raise ChipError(f"rates: {str(rate)[:40]!r} must be requests a second above 0")
    return [float(rate) for rate in given]
