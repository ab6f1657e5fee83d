"""Up to six predictions side by side: each as `chip predict` gives it, and how it stands to the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chip.hardware import gpus as hardware
from chip.hardware import roofline
from chip.predictor import request
from chip.show.serve.names import PASTED, question_of
from chip.show.serve.sweep import short
from chip.types import ChipError

SCHEMA = "chip.side_by_side/1"
MOST = 6
METRICS = ("ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_s", "energy_j_per_token")
PHASES = ("ttft", "tpot")
OWN = ("gpu", "tp", "dtype", "kv_dtype")  # of a configuration


def compare(question: Any) -> dict[str, Any]:
    """`{"model": "llama-3.1-8b", "batch": 8, "configurations": [{"gpu": "h200"}, {"gpu": "h100", "tp": 2}]}`."""
    if not isinstance(question, Mapping):
        raise ChipError(f"a comparison is a JSON object, got {type(question).__name__}")
    asked = dict(question)
    wanted, config = asked.pop("configurations", [{}]), asked.pop("config", None)
    if config is not None:
        asked.setdefault("model", PASTED)
    if not isinstance(wanted, list) or not 1 <= len(wanted) <= MOST:
        raise ChipError(f"configurations must be a list of 1 to {MOST} objects")
    found = [_predicted(asked, one, config) for one in wanted]
    return {
        "schema": SCHEMA,
        "predictions": found,
        "against_first": [_against(found[0], one) for one in found],
        "roofs": {gpu: roofline.describe(roofline.roofs_of(hardware.find(gpu))) for gpu in {f["gpu"] for f in found}},
    }


def _predicted(asked: Mapping[str, Any], own: Any, config: Any) -> dict[str, Any]:
    if not isinstance(own, Mapping):
        raise ChipError(f"a configuration is a JSON object, got {type(own).__name__}")
    for key in own:
        if key not in OWN:
            raise ChipError(f"a configuration has no {str(key)[:40]!r}; known: {', '.join(OWN)}")
    q, s = question_of({**asked, **own}, config)
    try:
        return request.predict(q, s).json()
    except ChipError as e:
        raise ChipError(f"{q.gpus} x {q.gpu}: {e}") from None


def _against(first: Mapping[str, Any], one: Mapping[str, Any]) -> dict[str, Any]:
    """Ratios to the first, ties where both intervals overlap, and the share of the memory that the engine may use."""
    both = [key for key in METRICS if first.get(key) is not None and one.get(key) is not None]
    memory = one["memory"]
    return {
        "ratio": {key: short(one[key] / first[key]) for key in both},
        "tie": {key: overlap(first["interval"][key], one["interval"][key]) for key in both},
        "operators": {phase: _operators(first["breakdown"][phase], one["breakdown"][phase]) for phase in PHASES},
        "usable_share": short(memory["usable_bytes"] / memory["capacity_bytes"]),
    }


def _operators(first: Sequence[Mapping[str, Any]], one: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The time of each operator that both have, over that of the first."""
    before = {row["role"]: row["us"] for row in first}
    return {row["role"]: short(row["us"] / before[row["role"]]) for row in one if before.get(row["role"])}


def overlap(a: Sequence[float], b: Sequence[float]) -> bool:
    return a[0] <= b[1] and b[0] <= a[1]
