"""A prediction as one line of JSON, put together by hand, and as HTML for notebooks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from html import escape
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any

from chip.predictor import basis
from chip.predictor.phase import Line, Phase

if TYPE_CHECKING:
    from chip.predictor.prediction import Prediction

SCHEMA = "chip.prediction/1"
# As a notebook shows it: bars of a phase, and its figures
MOST_BARS = 8
UNITS = {"ttft_s": ("TTFT", 1e3, "ms"), "tpot_s": ("TPOT", 1e3, "ms"), "e2e_s": ("end to end", 1e3, "ms"),
         "tokens_per_s": ("throughput", 1.0, "tok/s"), "energy_j_per_token": ("energy", 1.0, "J/tok")}  # fmt: skip
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def line(p: Prediction, breakdown: bool) -> str:
    """Several times faster than the encoder. Only names and notes have anything to escape."""
    s, prefill, decode = p.scenario, p.prefill, p.decode
    whole, time_by = p.whole(), p.seconds_by_source()
    tokens = s.batch * s.output
    energy = p.energy()
    names = _asked(*p.asked.values(), s.dtype, s.kv_dtype)
    rate = f"{tokens / whole.value:.7g}"
    ttft_span = f"[{prefill.low_s * 1e3:.7g},{prefill.high_s * 1e3:.7g}]"
    tpot = f"{decode.seconds * 1e3:.7g}" if decode else "null"
    tpot_span = f"[{decode.low_s * 1e3:.7g},{decode.high_s * 1e3:.7g}]" if decode else "null"
    bound = f'"{decode.bound}"' if decode else "null"
    of_request = f'"request_tpot_ms":{p.request_tpot_s * 1e3:.7g},' if p.request_tpot_s else ""
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
        f'"rests_on":"{basis.of_answer(time_by)}","ridge_flop_per_byte":{p.ridge:.4g},"memory":{_memory(p.memory)},'
        f'"notes":[{",".join(map(encode_basestring_ascii, p.notes))}]{rows}}}'
    )


@lru_cache(maxsize=256)
def _asked(model: str, gpu: str, engine: str, host: str, dtype: str, kv_dtype: str) -> str:
    named = {"model": model, "gpu": gpu, "engine": engine, "host": host, "dtype": dtype, "kv_dtype": kv_dtype}
    return _encode(named)[1:-1]


def _memory(needs: Mapping[str, Any]) -> str:
    """Numbers, and whether it fits."""
    values = [f'"{k}":{str(v).lower() if isinstance(v, bool) else v}' for k, v in needs.items()]
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


def html(p: Prediction) -> str:
    """The figures with their intervals, and bars of where the time goes."""
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
    time_by = p.seconds_by_source()
    total = sum(time_by.values())
    return ", ".join(f"{100 * s / total:.0f} % {name}" for name, s in sorted(time_by.items(), key=lambda row: -row[1]))


def _bars(phase: str, lines: list[Line]) -> str:
    total, rows = sum(line.seconds for line in lines), ""
    for line in lines[:MOST_BARS]:
        share = line.seconds / total
        bar = f'<div style="background:#4477aa;height:0.8em;width:{200 * share:.0f}px"></div>'
        rows += f"<tr><td>{escape(line.role)}</td><td>{bar}</td><td>{100 * share:.1f} %</td><td>{line.bound}</td></tr>"
    return f"<p>{phase.upper()}</p><table>{rows}</table>"
