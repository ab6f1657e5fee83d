"""The OpenAPI description of the API, made of the same limits and names the answers are."""

from __future__ import annotations

from functools import cache
from typing import Any

from chip import __version__, engines, ops, question
from chip.decoders import library
from chip.dtypes import AUTO, KV_DTYPES, PRECISIONS
from chip.hardware import gpus
from chip.predictor import operator
from chip.show.serve import api, compare, hub, planning, ranking, timeline, traffic
from chip.show.serve.names import LONGEST_NAME
from chip.simulator.plan import REQUESTS

Schema = dict[str, Any]
NUMBER: Schema = {"type": "number"}
TEXT: Schema = {"type": "string"}
SPAN: Schema = {"type": ["array", "null"], "items": NUMBER, "minItems": 2, "maxItems": 2}
OBJECT: Schema = {"type": "object"}
MEANINGS = {
    "batch": "requests, all submitted at once",
    "prompt": "tokens of each prompt",
    "output": "tokens generated for each",
    "tp": "GPUs that share each layer",
    "pp": "stages of a pipeline, each with its share of the layers",
    "ep": "GPUs that the experts lie on, a multiple of tp",
}


@cache
def document() -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "CHIP",
            "version": __version__,
            "description": "How fast a language model runs on a GPU: the JSON of `chip predict` and `chip estimate`.",
        },
        "paths": {
            "/api/predict": {"post": _asked("Predict a model on a GPU", "Scenario", "Prediction")},
            "/api/estimate": {"post": _asked("Estimate one operator", "Operator", "Estimate")},
            "/api/compare": {"post": _asked("Predictions side by side", "Configurations", "SideBySide")},
            "/api/sweep": {"post": _asked("Predict a grid: any axis may be a list", "Grid", "Rows")},
            "/api/rank": {"post": _asked("Rank GPUs, splits and precisions for a workload", "Workload", "Rows")},
            api.PLAN: {"post": _asked("Rank GPUs by the highest request rate within limits", "Plan", "Choices")},
            "/api/timeline": {"post": _asked("The predicted timeline of one step", "OneStep", "Timeline")},
            "/api/traffic": {"post": _asked("Live traffic over a range of request rates", "Traffic", "TrafficCurve")},
            api.HUB: {"post": _asked("The config.json of a hub id, to be sent as `config`", "HubId", "HubConfig")},
            **{path: {"get": _listed(f"chip list {what} --json")} for path, what in api.LISTED.items()},
            api.ROOFS + "{gpu}": {"get": _roofs()},
            api.DEFAULTS: {"get": _get("What a scenario may leave out, its limits, the dtypes", OBJECT)},
        },
        "components": {"schemas": _schemas()},
    }


def _json(schema: Schema) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _refusals(**why: str) -> dict[str, Any]:
    return {status.strip("_"): {"description": text, **_json(_ref("Error"))} for status, text in why.items()}


ALWAYS = _refusals(
    _400="the request or its body is not well formed",
    _401="a token is needed and was not sent",
    _403="the Host header names another server",
    _411="the body came in chunks: send it whole",
    _413="the body is too large",
    _503="too many connections, or it took too long",
)


def _get(summary: str, schema: Schema) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": "found", **_json(schema)}, **ALWAYS}}


def _listed(command: str) -> dict[str, Any]:
    rows = {"type": "array", "items": {"type": "object", "required": ["name"], "properties": {"name": TEXT}}}
    return _get(f"The rows of `{command}`", rows)


def _roofs() -> dict[str, Any]:
    found = _get("The roofs of a GPU, as `chip roofline --gpu NAME --json`", _ref("Roofs"))
    found["parameters"] = [
        {"name": "gpu", "in": "path", "required": True, "schema": {**TEXT, "minLength": 1}, "example": "h200"}
    ]
    found["responses"] |= _refusals(_404="no such GPU")
    return found


def _asked(summary: str, question: str, answer: str) -> dict[str, Any]:
    return {
        "summary": summary,
        "requestBody": {"required": True, **_json(_ref(question))},
        "responses": {
            "200": {"description": "the answer", **_json(_ref(answer))},
            **ALWAYS,
            **_refusals(_415="the body is not application/json", _422="the question has no answer; error says why"),
        },
    }


def _schemas() -> dict[str, Schema]:
    return {
        "Error": {"type": "object", "required": ["error"], "properties": {"error": TEXT}},
        "Scenario": _scenario(),
        "Operator": _operator(),
        "Prediction": _prediction(),
        "Estimate": _estimate(),
        "Roofs": {"type": "object", "required": ["schema", "title", "source", "compute", "memory"]},
        **_grids(),
        "Traffic": _traffic(),
        "HubId": {
            "type": "object",
            "required": ["model"],
            "additionalProperties": False,
            "properties": {"model": {**TEXT, "pattern": f"^{hub.REPO}$", "maxLength": LONGEST_NAME}},
        },
        "HubConfig": {"type": "object", "required": ["schema", "model", "config"]},
        "TrafficCurve": {
            "type": "object",
            "required": ["schema", "simulations", "timeline", "timeline_rate", "limits"],
        },
    }


def _traffic() -> Schema:
    shared = {key: one for key, one in _scenario()["properties"].items() if key in traffic.ASKED}
    rate = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e6}
    own: dict[str, Schema] = {
        "model": {**TEXT, "description": "a bundled model", "examples": library.names()[:3]},
        "workload": {**TEXT, "examples": traffic.workloads()},
        "requests": {"type": "integer", "minimum": 1, "maximum": traffic.MOST_REQUESTS, "default": REQUESTS},
        "rates": {"type": "array", "items": rate, "maxItems": traffic.MOST_RATES, "default": []},
        "limits": _times(),
    }
    return {"type": "object", "required": ["model"], "additionalProperties": False, "properties": {**shared, **own}}


def _times() -> Schema:
    times = {k: {"type": "number", "exclusiveMinimum": 0} for k in ranking.LIMITS}
    return {"type": "object", "additionalProperties": False, "properties": times}


def _grids() -> dict[str, Schema]:
    """Questions of many points; the axes are those of a scenario, each a value or a list of them."""
    one = _scenario()
    grid = {**one, "properties": {k: _or_list(k, v) for k, v in one["properties"].items()}}
    own: dict[str, Schema] = {
        "batch": {"anyOf": [grid["properties"]["batch"], {"const": ranking.LARGEST}]},
        "limits": _times(),
        "by": {"enum": list(ranking.BY), "default": "throughput"},
        "prune": {"type": "boolean", "default": False, "description": "leave out larger splits that give less per GPU"},
        "prices": {
            "type": "object",
            "additionalProperties": NUMBER,
            "description": "of one GPU for an hour, by its name",
        },
    }
    several = {"type": "array", "minItems": 1, "maxItems": compare.MOST, "items": _configuration(one)}
    phase = {"phase": {"enum": list(timeline.PHASES), "default": timeline.PHASES[0]}}
    row = {"type": "object", "description": "an axis each, then the figures, or `error`"}
    rows = {"schema": TEXT, "model": TEXT, "points": {"type": "integer"}, "rows": {"type": "array", "items": row}}
    traced = ("schema", "model", "gpu", "engine", "phase", "us", "host_us", "device_us", "events", "chrome")
    return {
        "Grid": grid,
        "Configurations": {**one, "properties": {**one["properties"], "configurations": several}},
        "SideBySide": {"type": "object", "required": ["schema", "predictions", "against_first", "roofs"]},
        "Workload": {**grid, "properties": {**grid["properties"], **own}},
        "Plan": _plan(one, grid["properties"], own),
        "Choices": {**OBJECT, "required": ["schema", "model", "rate_per_s", "slo", "requests", "pending", "rows"]},
        "OneStep": {**one, "properties": {**one["properties"], **phase}},
        "Rows": {"type": "object", "required": list(rows), "properties": rows},
        "Timeline": {"type": "object", "required": list(traced)},
    }


def _plan(one: Schema, grid: Schema, ranked: Schema) -> Schema:
    """Axes as of a grid, but for those of the traffic, and what all choices are held to."""
    axes = {key: (one["properties"] if key in planning.ONE else grid)[key] for key in planning.AXES}
    own: dict[str, Schema] = {
        "workload": {**TEXT, "examples": traffic.workloads(), "default": traffic.GIVEN},
        "limits": {**_times(), "minProperties": 1, "description": f"that {traffic.PERCENTILE} of the requests keeps"},
        "rate": {"type": ["number", "null"], "exclusiveMinimum": 0, "default": None},
        "requests": {"type": "integer", "minimum": 1, "maximum": traffic.MOST_REQUESTS, "default": REQUESTS},
    }
    named = {key: one["properties"][key] for key in ("model", "config")}
    return {**one, "properties": {**named, **axes, **{key: ranked[key] for key in ("by", "prices", "prune")}, **own}}


def _configuration(one: Schema) -> Schema:
    return {**OBJECT, "additionalProperties": False, "properties": {key: one["properties"][key] for key in compare.OWN}}


def _or_list(key: str, schema: Schema) -> Schema:
    if key in ("model", "config"):
        return schema
    return {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1}]}


def _scenario() -> Schema:
    d = question.DEFAULTS
    sizes = {
        key: {"type": "integer", "minimum": 1, "maximum": most, "default": d[key], "description": MEANINGS[key]}
        for key, most in question.LIMITS.items()
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "anyOf": [{"required": ["model"]}, {"required": ["config"]}],
        "properties": {
            "model": {
                **TEXT,
                "description": "a bundled model, or a name for `config`",
                "examples": library.names()[:3],
            },
            "config": {"type": "object", "description": "a config.json of the hub, in place of a bundled model"},
            "gpu": _gpu(d["gpu"]),
            "engine": {"enum": list(engines.names()), "default": d["engine"]},
            "dtype": {"enum": [AUTO, *PRECISIONS], "default": d["dtype"]},
            "kv_dtype": {"enum": [AUTO, *KV_DTYPES], "default": d["kv_dtype"]},
            **sizes,
        },
    }


def _gpu(default: str) -> Schema:
    return {
        **TEXT,
        "default": default,
        "description": "a bundled GPU, or a compute capability with memory such as sm_90:80GB; never a file",
        "examples": gpus.spec_names()[:3],
    }


def _operator() -> Schema:
    return {
        "type": "object",
        "required": ["op"],
        "properties": {"op": {"enum": list(ops.names())}, "gpu": _gpu(operator.DEFAULT_GPU)},
        "additionalProperties": {"type": ["integer", "boolean", "string"], "description": "an axis of the operator"},
    }


def _prediction() -> Schema:
    texts = ("schema", "model", "gpu", "engine", "dtype", "rests_on")
    numbers = ("ttft_ms", "e2e_ms", "tokens_per_s", "ridge_flop_per_byte")
    counts = ("batch", "prompt", "output", "tp", "pp", "ep")
    parts = ("interval", "bound", "sources", "memory", "breakdown")
    return {
        "type": "object",
        "required": [*texts, *numbers, *counts, *parts, "tpot_ms", "notes"],
        "properties": {
            **dict.fromkeys(texts, TEXT),
            **dict.fromkeys(numbers, NUMBER),
            **{key: {"type": "integer"} for key in counts},
            **dict.fromkeys(parts, OBJECT),
            "tpot_ms": {"type": ["number", "null"]},
            "energy_j_per_token": NUMBER,
            "interval": {"type": "object", "additionalProperties": SPAN},
            "notes": {"type": "array", "items": TEXT},
            "nearest_validated": {"type": "array", "items": OBJECT, "description": "measured runs and their errors"},
        },
    }


def _estimate() -> Schema:
    texts = ("schema", "op", "gpu", "bound", "source")
    numbers = ("us", "flops", "bytes", "intensity", "ridge_flop_per_byte")
    return {
        "type": "object",
        "required": [*texts, *numbers, "axes", "interval"],
        "properties": {
            **dict.fromkeys(texts, TEXT),
            **dict.fromkeys(numbers, NUMBER),
            "axes": OBJECT,
            "interval": SPAN,
            "notes": {"type": "array", "items": TEXT},
        },
    }
