"""The prediction as JSON: names and layout of `chip predict --json`, which other programs rely on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from chip.dtypes import PRECISIONS
from chip.predict.compose import Phase
from chip.predict.roof import Power, Range
from chip.types import Scenario

SCHEMA = "chip.prediction/1"
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Prediction(NamedTuple):
    """All that an answer is made of. `decode` is the mean decode step, None when one token is asked for."""

    asked: Mapping[str, Any]  # model, gpu, engine
    scenario: Scenario
    prefill: Phase
    decode: Phase | None
    ridge: float
    power: Power | None
    memory: Mapping[str, Any]
    notes: list[str]

    def json(self) -> dict[str, Any]:
        decode = _rows(self.decode) if self.decode else []
        return {**_summary(self), "breakdown": {"ttft": _rows(self.prefill), "tpot": decode}}

    def line(self) -> str:
        """The same as one line of text. The breakdown is most of it and has nothing to escape, so it is put together
        by hand: four times faster than json."""
        decode = _rows_text(self.decode) if self.decode else "[]"
        return f'{_encode(_summary(self))[:-1]},"breakdown":{{"ttft":{_rows_text(self.prefill)},"tpot":{decode}}}}}'


def _rows(phase: Phase) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(_rows_text(phase))
    return found


def _rows_text(phase: Phase) -> str:
    """Rows of the breakdown as JSON. Roles, kinds, bounds and sources are identifiers."""
    to_share = 1 / phase.seconds
    return "[" + ",".join([_ROW % (*n[:3], n[3] * 1e6, n[3] * to_share, *n[6:]) for n in phase.lines]) + "]"


_ROW = '{"role":"%s","op":"%s","count":%.6g,"us":%.7g,"share":%.4g,"bound":"%s","source":"%s","flops":%d,"bytes":%d}'


def _summary(p: Prediction) -> dict[str, Any]:
    s, prefill, decode = p.scenario, p.prefill, p.decode
    steps = s.output - 1

    def total(part: str) -> float:
        first: float = getattr(prefill, part)
        return first + steps * getattr(decode, part) if decode else first

    e2e_s, e2e_low_s, e2e_high_s = total("seconds"), total("low_s"), total("high_s")
    tokens = s.batch * s.output
    energy = _energy(p, Range(e2e_s, e2e_low_s, e2e_high_s), steps)
    return {
        "schema": SCHEMA,
        **p.asked,
        "batch": s.batch,
        "prompt": s.prompt,
        "output": s.output,
        "dtype": s.dtype,
        "tp": s.tp,
        "ttft_ms": _ms(prefill.seconds),
        "tpot_ms": _ms(decode.seconds) if decode else None,
        "e2e_ms": _ms(e2e_s),
        "tokens_per_s": _rate(tokens / e2e_s),
        **({"energy_j_per_token": round(energy.value / tokens, 6)} if energy else {}),
        "interval": {
            "ttft_ms": [_ms(prefill.low_s), _ms(prefill.high_s)],
            "tpot_ms": [_ms(decode.low_s), _ms(decode.high_s)] if decode else None,
            "e2e_ms": [_ms(e2e_low_s), _ms(e2e_high_s)],
            "tokens_per_s": [_rate(tokens / e2e_high_s), _rate(tokens / e2e_low_s)],
            **({"energy_j_per_token": [round(j / tokens, 6) for j in energy[1:]]} if energy else {}),
        },
        "bound": {"ttft": _bound(prefill), "tpot": _bound(decode) if decode else None},
        "sources": _sources(prefill, decode, steps, e2e_s),
        "ridge_flop_per_byte": round(p.ridge, 1),
        "memory": p.memory,
        "notes": p.notes,
    }


def _energy(p: Prediction, seconds: Range, steps: int) -> Range | None:
    """Joules of the whole request batch, all GPUs together."""
    if p.power is None:
        return None
    flops, moved = p.prefill.matmul_flops, p.prefill.bytes
    if p.decode:
        flops, moved = flops + steps * p.decode.matmul_flops, moved + steps * p.decode.bytes
    one = p.power.joules(PRECISIONS[p.scenario.dtype].matmul, seconds, flops, moved)
    return Range(*(p.scenario.tp * j for j in one))


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 6)


def _rate(per_s: float) -> float:
    """Three decimals, or seven digits of a rate so low that these would be lost."""
    return round(per_s, 3) if per_s >= 1000 else float(f"{per_s:.7g}")


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
