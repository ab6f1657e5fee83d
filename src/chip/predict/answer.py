"""The prediction as JSON: names and layout of `chip predict --json`, which other programs rely on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from chip.predict.compose import Phase
from chip.types import Scenario

SCHEMA = "chip.prediction/1"
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def prediction_line(
    asked: Mapping[str, Any],
    s: Scenario,
    prefill: Phase,
    decode: Phase | None,
    ridge: float,
    memory: Mapping[str, Any],
    notes: list[str],
) -> str:
    """One line of JSON. `decode` is the mean decode step, None when one token is asked for."""
    steps = s.output - 1

    def total(part: str) -> float:
        first: float = getattr(prefill, part)
        return first + steps * getattr(decode, part) if decode else first

    e2e_s, e2e_low_s, e2e_high_s = total("seconds"), total("low_s"), total("high_s")
    tokens = s.batch * s.output
    summary = {
        "schema": SCHEMA,
        **asked,
        "batch": s.batch,
        "prompt": s.prompt,
        "output": s.output,
        "dtype": s.dtype,
        "tp": s.tp,
        "ttft_ms": _ms(prefill.seconds),
        "tpot_ms": _ms(decode.seconds) if decode else None,
        "e2e_ms": _ms(e2e_s),
        "tokens_per_s": round(tokens / e2e_s, 3),
        "interval": {
            "ttft_ms": [_ms(prefill.low_s), _ms(prefill.high_s)],
            "tpot_ms": [_ms(decode.low_s), _ms(decode.high_s)] if decode else None,
            "e2e_ms": [_ms(e2e_low_s), _ms(e2e_high_s)],
            "tokens_per_s": [round(tokens / e2e_high_s, 3), round(tokens / e2e_low_s, 3)],
        },
        "bound": {"ttft": _bound(prefill), "tpot": _bound(decode) if decode else None},
        "sources": _sources(prefill, decode, steps, e2e_s),
        "ridge_flop_per_byte": round(ridge, 1),
        "memory": memory,
        "notes": notes,
    }
    # the breakdown is most of the text and is encoded once for each phase, which scenarios share
    rows = f'{{"ttft":{prefill.rows_json},"tpot":{decode.rows_json if decode else "[]"}}}'
    return f'{_encode(summary)[:-1]},"breakdown":{rows}}}'


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 6)


def _bound(phase: Phase) -> str:
    """What most of the time is bound by."""
    time_by: dict[str, float] = {}
    for line in phase.lines:
        time_by[line.bound] = time_by.get(line.bound, 0.0) + line.seconds
    return max(time_by, key=time_by.__getitem__)


def _sources(prefill: Phase, decode: Phase | None, steps: int, total_s: float) -> dict[str, float]:
    """Share of the end-to-end time by where its numbers come from."""
    time_by: dict[str, float] = {}
    for line in prefill.lines:
        time_by[line.source] = time_by.get(line.source, 0.0) + line.seconds
    for line in decode.lines if decode else ():
        time_by[line.source] = time_by.get(line.source, 0.0) + steps * line.seconds
    return {name: round(seconds / total_s, 4) for name, seconds in time_by.items()}
