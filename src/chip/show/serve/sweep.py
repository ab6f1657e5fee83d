"""Many predictions in one request: one row for each combination of the axes.

A row is light: the figures of a prediction without its breakdown, and what they rest on. Rows are remembered, so that
a limit or a price that changes costs no new prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from chip.decoders.decoder import Decoder
from chip.hardware import gpus as hardware
from chip.predictor import request
from chip.predictor.roof import roof_of
from chip.predictor.validated_runs import measured
from chip.question import DEFAULTS, Question, complete, question_of, scenario_of
from chip.show.serve.names import PASTED, decoder_of, gpu_of
from chip.types import ChipError, Scenario

SCHEMA = "chip.sweep/1"
MOST_POINTS = 2000  # of one request
REMEMBERED = 20_000
AXES = tuple(DEFAULTS)  # gpu, engine, batch, prompt, output, dtype, kv_dtype, tp
SPANS = ("ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_s", "energy_j_per_token")
SHOWN = ("dtype", "kv_dtype", "gpus", *SPANS, "bound", "rests_on", "notes")
SIXTEEN_BITS = ("matmul_bf16", "matmul_fp16")
MEMORY = ("fits", "max_batch", "total_bytes", "usable_bytes", "capacity_bytes")


def sweep(question: Any) -> dict[str, Any]:
    """`{"model": "llama-3.1-8b", "gpu": ["h100", "h200"], "batch": [1, 8, 64]}` -> six rows; `measured` has our own
    runs of the same model, GPU, engine, precision, split and prompt, at any batch and output. Where one output is asked
    for, they have the rates that their times give at that output, which is seldom their own."""
    return whole(question, part(question)["rows"])


def part(question: Any) -> dict[str, Any]:
    decoder, axes = understood(question, AXES)
    check_points(axes)
    rows = []
    for values in product(*axes.values()):
        asked = dict(zip(axes, values))
        rows.append({**asked, **answer(decoder, asked)})
    return {"rows": rows}


def whole(question: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    decoder, axes = understood(question, AXES)
    points = check_points(axes)
    runs = [] if question.get("config") else measured_beside(decoder.name, rows, axes["output"])
    return {"schema": SCHEMA, "model": decoder.name, "points": points, "rows": rows, "measured": runs}


def measured_beside(model: str, rows: list[dict[str, Any]], outputs: list[int]) -> list[dict[str, Any]]:
    """Our own runs in the settings of these rows, with the rates at their output where they have one."""
    runs = _measured(model, rows)
    return [{**run, **_rates(run, outputs[0])} for run in runs] if len(outputs) == 1 else runs


def _measured(model: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs that were measured in the settings of these rows; none had its cache in another precision or more stages."""
    prompts: dict[tuple[str, str, str, int], set[int]] = {}
    for row in rows:
        if "error" not in row and row["kv_dtype"] == row["dtype"] and row["pp"] == row["ep"] == 1:
            key = (row["gpu"], row["engine"], row["dtype"], row["tp"])
            prompts.setdefault(key, set()).add(row["prompt"])
    return [run for key, asked in prompts.items() for run in measured(model, *key, asked)]


def _rates(run: Mapping[str, Any], output: int) -> dict[str, float]:
    """Tokens a second at `output`, from the first token's time and the time of each one after it."""
    if "ttft_ms" not in run or (output > 1 and "tpot_ms" not in run):
        return {}
    per_user = 1e3 * output / (run["ttft_ms"] + (output - 1) * run.get("tpot_ms", 0.0))
    whole = {"tokens_per_s_per_gpu": per_user * run["batch"] / run["tp"], "tokens_per_s_per_user": per_user}
    return {**{name: short(rate) for name, rate in whole.items()}, "rates_at_output": output}


def understood(question: Any, known: tuple[str, ...]) -> tuple[Decoder, dict[str, list[Any]]]:
    """The model, and every axis as a list; a ChipError says what is wrong with the question itself."""
    if not isinstance(question, Mapping):
        raise ChipError(f"a sweep is a JSON object, got {type(question).__name__}")
    asked = dict(question)
    config = asked.pop("config", None)
    if config is not None:
        asked.setdefault("model", PASTED)
    if "model" not in asked:
        raise ChipError("key 'model' is missing")
    decoder = decoder_of(asked.pop("model"), config)
    for key in asked:
        if key not in known:
            raise ChipError(f"unknown key {str(key)[:80]!r}; known: model, config, {', '.join(known)}")
    given = {key: asked.get(key, DEFAULTS[key]) for key in AXES if key in known}
    return decoder, {key: value if isinstance(value, list) else [value] for key, value in given.items()}


def check_points(axes: Mapping[str, list[Any]], each: int = 1) -> int:
    points = prod(len(values) for values in axes.values()) * each
    if points > MOST_POINTS:
        raise ChipError(f"the grid has {points} points; at most {MOST_POINTS} are answered at once")
    return points


def answer(decoder: Decoder, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The figures of one point, or its `error`."""
    try:
        point = _point(decoder, asked)
    except ChipError as e:
        return {"error": str(e)}
    return _row(*point)


def most_at_once(decoder: Decoder, asked: Mapping[str, Any]) -> int:
    """Requests that there is memory for; 0 where the point has no answer."""
    try:
        return int(request.room(*_point(decoder, asked))["max_batch"])
    except ChipError:
        return 0


def gpus_of(asked: Mapping[str, Any]) -> int:
    return Scenario(1, 1, 1, tp=asked["tp"], pp=asked["pp"], ep=asked["ep"]).gpus


def product_rate(gpu: str) -> float:
    """FLOP/s of 16-bit products, or of what the GPU has instead."""
    rates = roof_of(hardware.find(gpu_of(gpu))).compute
    found = [rates[name].value for name in SIXTEEN_BITS if name in rates]
    return found[0] if found else max(rate.value for rate in rates.values())


def _point(decoder: Decoder, asked: Mapping[str, Any]) -> tuple[Question, Scenario]:
    values = complete({"model": decoder.name, **asked, "gpu": gpu_of(asked["gpu"])})
    q = question_of(values, decoder)
    return q, scenario_of(values, q)


@lru_cache(maxsize=REMEMBERED)
def _row(q: Question, s: Scenario) -> Mapping[str, Any]:
    try:
        found = request.predict(q, s).figures(breakdown=False)
    except ChipError as e:
        return {"error": str(e)}
    row: dict[str, Any] = {key: found.get(key) for key in SHOWN}
    row["interval"] = {key: found["interval"].get(key) for key in SPANS}
    for name, n in (("tokens_per_s_per_gpu", s.gpus), ("tokens_per_s_per_user", s.batch)):
        row[name] = short(found["tokens_per_s"] / n)
        row["interval"][name] = [short(v / n) for v in found["interval"]["tokens_per_s"]]
    memory = found["memory"]
    row["memory"] = {
        **{key: memory[key] for key in MEMORY},
        "share": short(memory["total_bytes"] / memory["usable_bytes"]),
    }
    return row


def short(value: float) -> float:
    """Seven digits, as a prediction has them."""
    return float(f"{value:.7g}")
