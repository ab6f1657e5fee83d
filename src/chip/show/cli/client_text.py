"""What `chip validate` says of a benchmarking client's result, from its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chip.show.cli.text import Column, amount, ms, signed, table

TITLES = {
    "mean_ttft_ms": "TTFT mean", "median_ttft_ms": "TTFT median", "p99_ttft_ms": "TTFT p99",
    "mean_tpot_ms": "TPOT mean", "p99_tpot_ms": "TPOT p99", "median_itl_ms": "ITL median", "p99_itl_ms": "ITL p99",
    "mean_e2el_ms": "end to end mean", "output_throughput": "output tokens/s",
}  # fmt: skip
Row = Mapping[str, Any]


def _form(row: Row, key: str) -> str | None:
    value = row[key]
    return None if value is None else ms(value) if row["metric"].endswith("_ms") else amount(value)


def _interval(row: Row) -> str | None:
    return None if row["low"] is None else f"{_form(row, 'low')} - {_form(row, 'high')}"


FIGURES: tuple[Column, ...] = (
    ("", lambda r: TITLES[r["metric"]], str), ("predicted", lambda r: _form(r, "predicted"), str),
    ("90 % interval", _interval, str), ("measured", lambda r: _form(r, "measured"), str), ("error", "error", signed),
)  # fmt: skip
PARTS: tuple[Column, ...] = (
    ("of a request's time", "part", str), ("predicted", "predicted_ms", ms), ("measured", "measured_ms", ms),
    ("difference", lambda r: f"{r['difference_ms']:+.4g} ms", str), ("set by", "set_by", str),
)  # fmt: skip
SWEEP: tuple[Column, ...] = (
    ("load", "title", str), *((TITLES[name], name, signed) for name in (
        "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "output_throughput",
    )),
    ("most of it lies in", "most", str),
)  # fmt: skip


def render(made: Row) -> str:
    results = made["results"]
    if len(results) == 1:
        return one(results[0])
    rows = [
        {"title": r["title"], "most": most(r)} | {f["metric"]: f["error"] for f in r["figures"]} for r in results
    ]  # fmt: skip
    first = results[0]
    return f"{first['client']}, {first['model']} on {first['gpu']}: predicted against measured\n\n{table(rows, SWEEP)}"


def one(r: Row) -> str:
    head = f"{r['client']}, {r['model']} on {r['gpu']}: {r['title']}"
    shown = [f for f in r["figures"] if f["metric"] in TITLES]
    parts = [head, "", table(shown, FIGURES, keep=("error",))]
    if r["parts"]:
        parts += ["", "where the difference lies", table(r["parts"], PARTS, keep=("set by",))]
    return "\n".join(parts)


def most(r: Row) -> str | None:
    """The part with the largest difference."""
    largest: Sequence[Row] = sorted(r["parts"], key=lambda p: -abs(p["difference_ms"]))
    return f"{largest[0]['part']} ({largest[0]['difference_ms']:+.3g} ms)" if largest else None
