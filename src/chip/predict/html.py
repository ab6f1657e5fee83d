"""A prediction as a notebook shows it: the figures with their intervals, and bars of where the time goes."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chip.predict.phase import Line
    from chip.predict.prediction import Prediction

MOST_BARS = 8
UNITS = {"ttft_s": ("TTFT", 1e3, "ms"), "tpot_s": ("TPOT", 1e3, "ms"), "e2e_s": ("end to end", 1e3, "ms"),
         "tokens_per_s": ("throughput", 1.0, "tok/s"), "energy_j_per_token": ("energy", 1.0, "J/tok")}  # fmt: skip


def page(p: Prediction) -> str:
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
    return f"<b>{escape(title)}</b><table>{head}{''.join(rows)}</table>{bars}<ul>{notes}</ul>"


def _bars(phase: str, lines: list[Line]) -> str:
    total, rows = sum(line.seconds for line in lines), ""
    for line in lines[:MOST_BARS]:
        share = line.seconds / total
        bar = f'<div style="background:#4477aa;height:0.8em;width:{200 * share:.0f}px"></div>'
        rows += f"<tr><td>{escape(line.role)}</td><td>{bar}</td><td>{100 * share:.1f} %</td><td>{line.bound}</td></tr>"
    return f"<p>{phase.upper()}</p><table>{rows}</table>"
