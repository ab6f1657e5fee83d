"""The prediction as JSON: names and layout of `chip predict --json`, which other programs rely on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from chip.dtypes import PRECISIONS
from chip.predict.compose import Phase
from chip.predict.roof import Power, Range
from chip.types import Scenario

SCHEMA = "chip.prediction/1"
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Prediction(NamedTuple):
    """All that an answer is made of. `decode` is the mean decode step, None when one token is asked for."""

    asked: Mapping[str, str]  # model, gpu, engine
    scenario: Scenario
    prefill: Phase
    decode: Phase | None
    ridge: float
    power: Power | None
    memory: Mapping[str, Any]
    notes: list[str]

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.line())
        return found

    def line(self) -> str:
        """One line of JSON, put together by hand: in a sweep this is several times faster than the encoder, and only
        names and notes have anything to escape."""
        s, prefill, decode = self.scenario, self.prefill, self.decode
        steps = s.output - 1
        whole = Range(prefill.seconds, prefill.low_s, prefill.high_s)
        if decode:
            whole = Range(*(a + steps * b for a, b in zip(whole, (decode.seconds, decode.low_s, decode.high_s))))
        tokens = s.batch * s.output
        energy = _energy(self, whole, steps)
        rate = f"{tokens / whole.value:.7g}"
        names = _asked(*self.asked.values(), s.dtype, s.kv_dtype)
        ttft_span = f"[{prefill.low_s * 1e3:.7g},{prefill.high_s * 1e3:.7g}]"
        tpot = f"{decode.seconds * 1e3:.7g}" if decode else "null"
        tpot_span = f"[{decode.low_s * 1e3:.7g},{decode.high_s * 1e3:.7g}]" if decode else "null"
        bound = f'"{_bound(decode)}"' if decode else "null"
        joules = f'"energy_j_per_token":{energy.value / tokens:.6g},' if energy else ""
        joules_span = f',"energy_j_per_token":[{energy.low / tokens:.6g},{energy.high / tokens:.6g}]' if energy else ""
        return (
            f'{{"schema":"{SCHEMA}",{names},"batch":{s.batch},"prompt":{s.prompt},"output":{s.output},"tp":{s.tp},'
            f'"ttft_ms":{prefill.seconds * 1e3:.7g},"tpot_ms":{tpot},"e2e_ms":{whole.value * 1e3:.7g},'
            f'"tokens_per_s":{rate},{joules}"interval":{{"ttft_ms":{ttft_span},"tpot_ms":{tpot_span},'
            f'"e2e_ms":[{whole.low * 1e3:.7g},{whole.high * 1e3:.7g}],'
            f'"tokens_per_s":[{tokens / whole.high:.7g},{tokens / whole.low:.7g}]{joules_span}}},'
            f'"bound":{{"ttft":"{_bound(prefill)}","tpot":{bound}}},"sources":{_sources(prefill, decode, steps)},'
            f'"ridge_flop_per_byte":{self.ridge:.4g},"memory":{_memory(self.memory)},'
            f'"notes":{_encode(self.notes) if self.notes else "[]"},"breakdown":{{"ttft":{_rows_text(prefill)},'
            f'"tpot":{_rows_text(decode) if decode else "[]"}}}}}'
        )


@lru_cache(maxsize=256)
def _asked(model: str, gpu: str, engine: str, dtype: str, kv_dtype: str) -> str:
    return _encode({"model": model, "gpu": gpu, "engine": engine, "dtype": dtype, "kv_dtype": kv_dtype})[1:-1]


def _memory(found: Mapping[str, Any]) -> str:
    """Whole numbers, and whether it fits."""
    return (
        "{"
        + ",".join([f'"{k}":{"true" if v is True else "false" if v is False else v}' for k, v in found.items()])
        + "}"
    )


def _rows_text(phase: Phase) -> str:
    """Rows of the breakdown as JSON. Roles, kinds, bounds and sources are identifiers."""
    to_share = 1 / phase.seconds
    return (
        "["
        + ",".join(
            [
                _NUMBERS % (_names(role, kind, bound, source, calls), s * 1e6, s * to_share, flops, moved)
                for role, kind, calls, s, _, _, bound, source, flops, moved in phase.lines
            ]
        )
        + "]"
    )


_NUMBERS = '%s,"us":%.7g,"share":%.4g,"flops":%d,"bytes":%d}'


@lru_cache(maxsize=1024)
def _names(role: str, kind: str, bound: str, source: str, calls: float) -> str:
    return f'{{"role":"{role}","op":"{kind}","count":{calls:.6g},"bound":"{bound}","source":"{source}"'


def _energy(p: Prediction, seconds: Range, steps: int) -> Range | None:
    """Joules of the whole request batch, all GPUs together."""
    if p.power is None:
        return None
    flops, moved = p.prefill.matmul_flops, p.prefill.bytes
    if p.decode:
        flops, moved = flops + steps * p.decode.matmul_flops, moved + steps * p.decode.bytes
    one = p.power.joules(PRECISIONS[p.scenario.dtype].matmul, seconds, flops, moved)
    return Range(*(p.scenario.tp * j for j in one))


def _bound(phase: Phase) -> str:
    """What most of the time is bound by."""
    time_by: dict[str, float] = {}
    for _, _, _, seconds, _, _, bound, _, _, _ in phase.lines:
        time_by[bound] = time_by.get(bound, 0.0) + seconds
    return max(time_by, key=time_by.__getitem__)


def _sources(prefill: Phase, decode: Phase | None, steps: int) -> str:
    """Share of the end-to-end time by where its numbers come from."""
    time_by: dict[str, float] = {}
    for _, _, _, seconds, _, _, _, source, _, _ in prefill.lines:
        time_by[source] = time_by.get(source, 0.0) + seconds
    for _, _, _, seconds, _, _, _, source, _, _ in decode.lines if decode else ():
        time_by[source] = time_by.get(source, 0.0) + steps * seconds
    total = sum(time_by.values())
    return "{" + ",".join([f'"{name}":{seconds / total:.4f}' for name, seconds in time_by.items()]) + "}"
