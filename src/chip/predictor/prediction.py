"""A prediction, and its JSON: names and layout of `chip predict --json`, which other programs rely on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from math import hypot
from typing import Any, NamedTuple

from chip.decoders.decoder import Decoder
from chip.predictor import basis
from chip.predictor.phase import Line, Phase
from chip.predictor.roof import Power, Range
from chip.types import Scenario

SCHEMA = "chip.prediction/1"
# Joules per FLOP and per byte leave out clocks, values and caches. This is the p90 error of energy over recorded runs.
ENERGY_OFF = 0.17
# As a notebook shows it: bars of a phase, and its figures
MOST_BARS = 8
UNITS = {"ttft_s": ("TTFT", 1e3, "ms"), "tpot_s": ("TPOT", 1e3, "ms"), "e2e_s": ("end to end", 1e3, "ms"),
         "tokens_per_s": ("throughput", 1.0, "tok/s"), "energy_j_per_token": ("energy", 1.0, "J/tok")}  # fmt: skip
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class Prediction(NamedTuple):
    """How fast a model runs on a GPU, how sure that is, and where the time goes."""

    asked: Mapping[str, str]  # model, gpu, engine, and the host whose terms were taken
    scenario: Scenario
    prefill: Phase
    decode: Phase | None  # the mean decode step; None where one token was asked for
    ridge: float
    power: Power | None
    memory: Mapping[str, Any]
    notes: list[str]
    decoder: Decoder | None = None  # None where operators were traced
    request_tpot_s: float | None = None  # mean over requests of (last - first token) / (output - 1), as in live traffic

    @property
    def nearest_validated(self) -> list[dict[str, Any]]:
        """Runs that predictions were compared with, nearest first, with errors (`chip.predictor.validated_runs`)."""
        from chip.predictor.validated_runs import nearest  # here, since a sweep does not need it

        return nearest(self.decoder, self.asked["gpu"], self.asked["engine"], self.scenario) if self.decoder else []

    @property
    def ttft_s(self) -> float:
        """Time until every request of the batch has its first token."""
        return self.prefill.seconds

    @property
    def tpot_s(self) -> float | None:
        """The mean step after the last request has its first token; None where one token was asked for."""
        return self.decode.seconds if self.decode else None

    @property
    def e2e_s(self) -> float:
        return self._whole().value

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of the whole batch over the end-to-end time."""
        return self.scenario.batch * self.scenario.output / self.e2e_s

    @property
    def energy_j_per_token(self) -> float | None:
        energy = self._energy()
        return energy.value / (self.scenario.batch * self.scenario.output) if energy else None

    @property
    def bound(self) -> dict[str, str]:
        """What limits each phase: memory, compute, launch, host or link."""
        return {"ttft": self.prefill.bound} | ({"tpot": self.decode.bound} if self.decode else {})

    @property
    def dtype(self) -> str:
        """The format of the weights, as `auto` came out."""
        return self.scenario.dtype

    @property
    def interval(self) -> dict[str, tuple[float, float]]:
        """90 % intervals in SI units: ttft_s, tpot_s, e2e_s, tokens_per_s, energy_j_per_token."""
        whole, tokens = self._whole(), self.scenario.batch * self.scenario.output
        found = {"ttft_s": (self.prefill.low_s, self.prefill.high_s), "e2e_s": (whole.low, whole.high)}
        found["tokens_per_s"] = (tokens / whole.high, tokens / whole.low)
        if self.decode:
            found["tpot_s"] = (self.decode.low_s, self.decode.high_s)
        if energy := self._energy():
            found["energy_j_per_token"] = (energy.low / tokens, energy.high / tokens)
        return found

    @property
    def lines(self) -> dict[str, list[Line]]:
        """The breakdown: rows of the time to first token and of the mean decode step, longest first."""
        return {"ttft": self.prefill.lines, "tpot": self.decode.lines if self.decode else []}

    @property
    def rests_on(self) -> str:
        """What most of its operators' time rests on: measured, imported or datasheet."""
        return basis.of_answer(self._seconds_by_source())

    def _seconds_by_source(self) -> dict[str, float]:
        """Of the end-to-end time."""
        time_by, steps = dict(self.prefill.seconds_by_source), self.scenario.output - 1
        for source, seconds in self.decode.seconds_by_source.items() if self.decode else ():
            time_by[source] = time_by.get(source, 0.0) + steps * seconds
        return time_by

    def _whole(self) -> Range:
        """Seconds from end to end."""
        steps, p, d = self.scenario.output - 1, self.prefill, self.decode
        if d is None:
            return Range(p.seconds, p.low_s, p.high_s)
        return Range(p.seconds + steps * d.seconds, p.low_s + steps * d.low_s, p.high_s + steps * d.high_s)

    def _energy(self) -> Range | None:
        """Joules of the whole batch, all GPUs together; None where power was not measured."""
        if self.power is None:
            return None
        steps, idle_w, whole = self.scenario.output - 1, self.power.idle_w, self._whole()
        above = self.prefill.joules + (steps * self.decode.joules if self.decode else 0.0)
        value, low, high = (above + idle_w * seconds for seconds in whole)
        own = ENERGY_OFF * value
        low, high = value - hypot(value - low, own), value + hypot(high - value, own)
        gpus = self.scenario.gpus
        return Range(gpus * value, gpus * max(0.0, low), gpus * high)

    def row(self) -> dict[str, Any]:
        """The figures as a flat row of a table; `notes` become lines of one text."""
        spans = self.interval
        (ttft_low, ttft_high), (tpot_low, tpot_high) = spans["ttft_s"], spans.get("tpot_s", (None, None))
        return {
            "ttft_s": self.ttft_s,
            "ttft_low_s": ttft_low,
            "ttft_high_s": ttft_high,
            "tpot_s": self.tpot_s,
            "tpot_low_s": tpot_low,
            "tpot_high_s": tpot_high,
            "e2e_s": self.e2e_s,
            "tokens_per_s": self.tokens_per_s,
            "energy_j_per_token": self.energy_j_per_token,
            "fits": self.memory["fits"],
            "memory_bytes": self.memory["total_bytes"],
            "notes": "\n".join(self.notes),
        }

    def to_dict(self) -> dict[str, Any]:
        """As `chip predict --json` has it."""
        return self.json()

    def _repr_html_(self) -> str:
        """A table and bars, for notebooks."""
        return _html(self)

    def figures(self, breakdown: bool = True) -> dict[str, Any]:
        """The answer as in a sweep: what `line` says, as values."""
        found: dict[str, Any] = json.loads(self.line(breakdown))
        return found

    def json(self) -> dict[str, Any]:
        """The same, with `nearest_validated`."""
        return {**self.figures(), "nearest_validated": self.nearest_validated}

    def line(self, breakdown: bool = True) -> str:
        """The answer as one line of JSON, put together by hand: several times faster than the encoder. Only names and
        notes have anything to escape."""
        s, prefill, decode = self.scenario, self.prefill, self.decode
        whole, time_by = self._whole(), self._seconds_by_source()
        tokens = s.batch * s.output
        energy = self._energy()
        names = _asked(*self.asked.values(), s.dtype, s.kv_dtype)
        rate = f"{tokens / whole.value:.7g}"
        ttft_span = f"[{prefill.low_s * 1e3:.7g},{prefill.high_s * 1e3:.7g}]"
        tpot = f"{decode.seconds * 1e3:.7g}" if decode else "null"
        tpot_span = f"[{decode.low_s * 1e3:.7g},{decode.high_s * 1e3:.7g}]" if decode else "null"
        bound = f'"{decode.bound}"' if decode else "null"
        of_request = f'"request_tpot_ms":{self.request_tpot_s * 1e3:.7g},' if self.request_tpot_s else ""
        joules = f'"energy_j_per_token":{energy.value / tokens:.6g},' if energy else ""
        joules_span = f',"energy_j_per_token":[{energy.low / tokens:.6g},{energy.high / tokens:.6g}]' if energy else ""
        rows = f',"breakdown":{{"ttft":{_rows_text(prefill)},"tpot":{_rows_text(decode)}}}' if breakdown else ""
        return (
            f'{{"schema":"{SCHEMA}",{names},"batch":{s.batch},"prompt":{s.prompt},"output":{s.output},"tp":{s.tp},"pp":{s.pp},'
            f'"ep":{s.ep},"gpus":{s.gpus},'
            f'"ttft_ms":{prefill.seconds * 1e3:.7g},"tpot_ms":{tpot},{of_request}"e2e_ms":{whole.value * 1e3:.7g},'
            f'"tokens_per_s":{rate},{joules}"interval":{{"ttft_ms":{ttft_span},"tpot_ms":{tpot_span},'
            f'"e2e_ms":[{whole.low * 1e3:.7g},{whole.high * 1e3:.7g}],'
            f'"tokens_per_s":[{tokens / whole.high:.7g},{tokens / whole.low:.7g}]{joules_span}}},'
            f'"bound":{{"ttft":"{prefill.bound}","tpot":{bound}}},"sources":{_sources(time_by)},'
            f'"rests_on":"{basis.of_answer(time_by)}","ridge_flop_per_byte":{self.ridge:.4g},"memory":{_memory(self.memory)},'
            f'"notes":[{",".join(map(encode_basestring_ascii, self.notes))}]{rows}}}'
        )


@lru_cache(maxsize=256)
def _asked(model: str, gpu: str, engine: str, host: str, dtype: str, kv_dtype: str) -> str:
    named = {"model": model, "gpu": gpu, "engine": engine, "host": host, "dtype": dtype, "kv_dtype": kv_dtype}
    return _encode(named)[1:-1]


def _memory(found: Mapping[str, Any]) -> str:
    """Numbers, and whether it fits."""
    values = [f'"{k}":{str(v).lower() if isinstance(v, bool) else v}' for k, v in found.items()]
    return "{" + ",".join(values) + "}"


def _rows_text(phase: Phase | None) -> str:
    """Rows of the breakdown as JSON. Roles, kinds, bounds and sources are identifiers."""
    if phase is None:
        return "[]"
    to_share = 1 / phase.seconds
    rows = [
        f'{_named(role, kind, calls, bound, source)},"us":{s * 1e6:.7g},"share":{s * to_share:.4g},'
        f'"flops":{int(flops)},"bytes":{int(moved)}}}'
        for role, kind, calls, s, _, _, bound, source, flops, moved, _ in phase.lines
    ]
    return f"[{','.join(rows)}]"


@lru_cache(maxsize=4096)
def _named(role: str, kind: str, calls: float, bound: str, source: str) -> str:
    """The begin of a row, which many predictions share."""
    return f'{{"role":"{role}","op":"{kind}","count":{calls:.6g},"bound":"{bound}","source":"{source}"'


def _sources(time_by: Mapping[str, float]) -> str:
    """Shares of the end-to-end time by source."""
    total = sum(time_by.values())
    return "{" + ",".join([f'"{name}":{seconds / total:.4f}' for name, seconds in time_by.items()]) + "}"


def _html(p: Prediction) -> str:
    """The figures with their intervals, and bars of where the time goes."""
    from html import escape  # here, since nothing but a notebook needs it

    s, asked, rows = p.scenario, p.asked, []
    for name, (low, high) in p.interval.items():
        title, scale, unit = UNITS[name]
        span = f"{low * scale:.4g} - {high * scale:.4g}"
        rows.append(f"<tr><td>{title}</td><td>{getattr(p, name) * scale:.4g} {unit}</td><td>{span}</td></tr>")
    title = (
        f"{asked['model']} on {asked['gpu']}, {asked['engine']}, {s.dtype}: {s.batch} x ({s.prompt} in, {s.output} out)"
    )
    head = "<tr><th></th><th>predicted</th><th>90 % interval</th></tr>"
    notes = "".join(f"<li>{escape(note)}</li>" for note in p.notes)
    bars = "".join(_bars(phase, lines) for phase, lines in p.lines.items() if lines)
    share, room = p.memory["total_bytes"] / 2**30, p.memory["usable_bytes"] / 2**30
    fits = "fits" if p.memory["fits"] else "does not fit"
    rows.append(f"<tr><td>memory</td><td>{share:.3g} GiB</td><td>{fits} the {room:.3g} GiB of a GPU</td></tr>")
    rows.append(f"<tr><td>rests on</td><td>{escape(p.rests_on)}</td><td>{escape(_shares(p))}</td></tr>")
    return f"<b>{escape(title)}</b><table>{head}{''.join(rows)}</table>{bars}<ul>{notes}</ul>"


def _shares(p: Prediction) -> str:
    """Of the end-to-end time by source."""
    time_by = p._seconds_by_source()
    total = sum(time_by.values())
    return ", ".join(f"{100 * s / total:.0f} % {name}" for name, s in sorted(time_by.items(), key=lambda row: -row[1]))


def _bars(phase: str, lines: list[Line]) -> str:
    from html import escape

    total, rows = sum(line.seconds for line in lines), ""
    for line in lines[:MOST_BARS]:
        share = line.seconds / total
        bar = f'<div style="background:#4477aa;height:0.8em;width:{200 * share:.0f}px"></div>'
        rows += f"<tr><td>{escape(line.role)}</td><td>{bar}</td><td>{100 * share:.1f} %</td><td>{line.bound}</td></tr>"
    return f"<p>{phase.upper()}</p><table>{rows}</table>"
