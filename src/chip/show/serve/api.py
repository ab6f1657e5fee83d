"""What the API answers: the JSON of the command line, from names and pasted configs alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from chip import catalog, question
from chip.dtypes import AUTO, PRECISIONS
from chip.explain import advice
from chip.hardware import gpus as hardware
from chip.hardware import roofline
from chip.predictor import operator, request
from chip.show.serve import compare, hub, planning, ranking, sweep, timeline, traffic
from chip.show.serve.names import PASTED, gpu_of, question_of
from chip.simulator import prices
from chip.simulator.plan import REQUESTS
from chip.types import ChipError


def predict(question: Any) -> str:
    """`chip predict --json`; `config` may hold a config.json in place of a bundled model, `model` then names it."""
    if not isinstance(question, dict):
        raise ChipError(f"a scenario is a JSON object, got {type(question).__name__}")
    asked = dict(question)
    config = asked.pop("config", None)
    if config is not None:
        asked.setdefault("model", PASTED)
    found = request.predict(*question_of(asked, config))
    return json.dumps(found.json(), separators=(",", ":"), allow_nan=False)


def estimate(question: Any) -> str:
    """`chip estimate --json`."""
    if isinstance(question, dict) and isinstance(question.get("gpu"), str):
        gpu_of(question["gpu"])
    return _encode(operator.answer(question))


def roofs(gpu: str) -> str:
    """`chip roofline --gpu NAME --json`, without points."""
    roofs_of_gpu = roofline.roofs_of(hardware.find(gpu_of(gpu)))
    told = {"warnings": advice.warnings([], roofs_of_gpu)}
    return _encode({"schema": "chip.roofline/1", **roofline.describe(roofs_of_gpu), **told})


@lru_cache(maxsize=8)
def listing(what: str) -> str:
    """`chip list WHAT --json`."""
    return _encode(catalog.ROWS[what]())


@lru_cache(maxsize=1)
def defaults() -> str:
    """What a question may leave out, how large its numbers may be, and the dtypes there are."""
    return _encode(
        {
            "defaults": question.DEFAULTS,
            "limits": question.LIMITS,
            "dtypes": [AUTO, *PRECISIONS],
            "rank": {
                "by": list(ranking.BY),
                "limits": ranking.LIMITS,
                "batches": ranking.BATCHES,
                "splits": ranking.SPLITS,
            },
            "plan": {"requests": REQUESTS, "percentile": traffic.PERCENTILE, "engines": traffic.engines_that_serve()},
            "start": ranking.opening(),
            "prices": {key: prices.about()[key] for key in ("dated", "currency", "what")},
            "most_points": sweep.MOST_POINTS,
            "workloads": traffic.workloads(),
        }
    )


def warm_up() -> None:
    """Read models, datasheets, profiles and measured tables before anyone waits for them."""
    for what in catalog.ROWS:
        listing(what)
    for gpu in hardware.spec_names():
        sweep.sweep({"model": "llama-3.2-1b", "gpu": gpu, "dtype": "fp16"})  # what cannot be predicted is a row, too


def _encode(found: Mapping[str, Any] | list[Any]) -> str:
    return json.dumps(found, separators=(",", ":"), allow_nan=False)


Answer = Callable[[Any], str]
PLAN = "/api/plan"
HUB = "/api/hub"  # waits for the hub, not for this machine
ASKED: dict[str, Answer] = {  # POST, a JSON object in the body
    "/api/predict": predict,
    "/api/estimate": estimate,
    "/api/compare": lambda question: _encode(compare.compare(question)),
    "/api/sweep": lambda question: _encode(sweep.sweep(question)),
    "/api/rank": lambda question: _encode(ranking.rank(question)),
    PLAN: lambda question: _encode(planning.rank(question)),
    "/api/timeline": lambda question: _encode(timeline.timeline(question)),
    "/api/traffic": lambda question: _encode(traffic.traffic(question)),
    HUB: lambda question: _encode(hub.config(question)),
}
PARTS: dict[str, Answer] = {  # of a grid, for the processes of `chip.show.serve.crew`; no path of the server's
    "/api/sweep": lambda question: _encode(sweep.part(question)),
    "/api/rank": lambda question: _encode(ranking.part(question)),
    PLAN: lambda question: _encode(planning.part(question)),
}
LISTED = {f"/api/{what}": what for what in catalog.ROWS}  # GET
ROOFS = "/api/gpus/"  # GET, a GPU's name after it
DEFAULTS = "/api/defaults"  # GET
