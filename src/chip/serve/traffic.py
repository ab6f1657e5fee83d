"""Live traffic over a range of request rates, as `chip simulate` answers it, and what the engine holds at one of them.

Without rates the engine is first given all requests at once: what it then serves is its limit, and the rates are shares
of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from chip.question import ANYWHERE, DEFAULTS, SYSTEM, Question
from chip.serve.names import PASTED, question_of
from chip.serve.ranking import limits_of
from chip.simulate import synthetic, workload
from chip.simulate.answer import Simulation
from chip.simulate.simulation import simulate
from chip.types import ChipError

SCHEMA = "chip.traffic_curve/1"
SHARES = (0.1, 0.3, 0.5, 0.65, 0.8, 0.9, 1.0, 1.1)  # of what is served when all requests come at once
REQUESTS = 400  # at least, and for at least so many seconds: what a minute keeps up is kept up
LEAST_S = 60.0
NEAR = 1.04  # the highest rate within the limits is found to within this ratio
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
    about = {"workload": _workload(asked), "requests": asked["requests"], "goals": goals}
    curve = _curve(q, json.dumps([about, _rates(asked["rates"]), limits]))
    return {**curve, "prompt": asked["prompt"], "output": asked["output"]}


@lru_cache(maxsize=64)
def _curve(q: Question, traffic: str) -> dict[str, Any]:
    """Of what was understood, the traffic as JSON: the same question again costs nothing."""
    about, rates, limits = json.loads(traffic)
    saturated = None
    if not rates:
        saturated = _simulated(q, about, 0.0).requests_per_s
        rates = list(dict.fromkeys(float(f"{share * saturated:.2g}") for share in SHARES))
    found = {rate: _simulated(q, about, rate).json() for rate in rates}
    kept = [r for r, one in found.items() if limits and _keeps(one, limits)]
    if kept and (over := [r for r in found if r > max(kept)]):
        found |= _between(q, about, limits, max(kept), min(over))
        kept = [r for r, one in found.items() if _keeps(one, limits)]
    found = dict(sorted(found.items()))
    chosen = max(kept, default=min(found))
    return {
        "schema": SCHEMA,
        **{"model": q.model.name, "gpu": q.gpu, "engine": q.engine, "dtype": q.dtype, "tp": q.tp},
        **about,
        "limits": limits,
        "saturated_requests_per_s": saturated and float(f"{saturated:.7g}"),
        "highest_rate_within_limits": max(kept, default=None),
        "simulations": list(found.values()),
        "timeline_rate": chosen,
        "timeline": _simulated(q, about, chosen, timeline=True).timeline_json(),
    }


def _between(
    q: Question, about: Mapping[str, Any], limits: Mapping[str, float], low: float, high: float
) -> dict[float, Any]:
    """Rates closer and closer to the highest that keeps the limits, with what is simulated at each."""
    found = {}
    while high / low > NEAR:
        rate = float(f"{(low * high) ** 0.5:.3g}")
        if not low < rate < high:
            break
        found[rate] = _simulated(q, about, rate).json()
        low, high = (rate, high) if _keeps(found[rate], limits) else (low, rate)
    return found


def _simulated(q: Question, about: Mapping[str, Any], rate: float, timeline: bool = False) -> Simulation:
    system = {name: getattr(q, name) for name in SYSTEM}
    requests = min(MOST_REQUESTS, max(about["requests"], round(rate * LEAST_S)))
    about = {**about, "requests": requests}
    return simulate(q.model, rate=rate, draws=0, timeline=timeline, **about, **system)


def _keeps(one: Mapping[str, Any], limits: Mapping[str, float]) -> bool:
    """Whether the 99th percentile of every limited time does; a request that was turned away keeps nothing."""
    kept = all(one[name] is None or one[name]["p99"] <= most for name, most in limits.items())
    return bool(kept and not one["rejected"] and not one["queue_grows"])


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


def _workload(asked: Mapping[str, Any]) -> str:
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
