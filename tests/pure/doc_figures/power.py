"""docs/accuracy.md: what an H200 draws at its power limit."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from chip.hardware import gpus
from chip.ops.linear import Linear
from chip.predictor import sustained
from chip.predictor.roof import roof_of
from doc_figures.accuracy import RECORDS

ROWS = 64  # from which on products are held by the limit


@cache
def record() -> dict[str, Any]:
    return json.loads((RECORDS / "power-limit.json").read_text(encoding="utf-8"))["data"]


def steady() -> str:
    """Of products without a pause."""
    watts = [row["watts"] for row in record()["steady"] if row["rows"] >= ROWS]
    return f"{min(watts):.0f} to {max(watts):.0f} W"


def summed(row: dict[str, Any]) -> float:
    """Watts of its FLOPs and bytes, each metered alone."""
    power, op = roof_of(gpus.find("h200")).power, Linear(row["rows"], 8192, 8192, "bf16")
    flops, read, written = op.cost()
    return power.idle_w + 1e6 * (flops * power.per_flop_j[op.compute] + (read + written) * power.per_byte_j) / row["us"]


def sums() -> str:
    return f"{max(map(summed, record()['steady'])):.0f} W"


def bursts(least_ms: str, most_ms: str) -> str:
    """Of products after a rest, by how long they have run."""
    watts = [row["watts"] for row in record()["bursts"][1:] if float(least_ms) < row["ms"] <= float(most_ms)]
    return f"{min(watts):.0f} to {max(watts):.0f} W"


def unlimited() -> str:
    return f"{100 * sustained.UNLIMITED:.0f} %"


def sustained_rates(*names: str) -> str:
    """TFLOP/s in bf16 that GPUs sustain, and their datasheets'."""
    peaks = [sustained.peak_flop_per_s(gpus.spec(name)) for name in names]
    rates = [(sustained.share_of_peak(gpus.find(name)) * peak / 1e12, peak / 1e12) for name, peak in zip(names, peaks)]
    said = [f"{own:.0f} of {peak:.0f} ({name})" for name, (own, peak) in zip(names, rates)]
    return f"{said[0].replace(' (', ' TFLOP/s (')}, {', '.join(said[1:-1])} and {said[-1]}"
