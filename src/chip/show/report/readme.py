"""Tables of a Markdown page, written from a summary: `python -m chip.show.report.readme README.md`.

A table stands between two comments, the first of which says what it shows and of which results:

    <!-- summary: ceilings of results/h200 -->
    <!-- end of summary -->

Paths are relative to the folder the command is run in. With --check nothing is written, and the exit code is 1 when a
table is stale.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from chip.files import output
from chip.show.report import columns, kernel_tables, sources
from chip.show.report.summary import Summary
from chip.types import ChipError
from chip.units import duration, gib, number, percent, si

MARKED = re.compile(
    r"(?P<head><!-- summary: (?P<view>[\w-]+) of (?P<results>[^\n]*?) -->\n)(?P<table>.*?)(?=<!-- end of summary -->)",
    re.DOTALL,
)
Row = Mapping[str, Any]
View = tuple[str, Callable[[Row], bool], Mapping[str, str | Callable[[Row], str]]]


def quantity(value: Any, unit: str) -> str:
    """A value in its unit, as people read it."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if not isinstance(value, int | float):
        return str(value).replace("|", "\\|")
    seconds = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
    if unit in seconds:
        return duration(value * seconds[unit])
    forms = {"B": gib, "%": "{:.1f} %".format, "share": percent, "x": "{:.2f}x".format}
    if unit in forms:
        return forms[unit](value)
    if unit in ("FLOP/s", "B/s", "Hz", "W"):
        return si(value, unit)
    shown = f"{value:.2g}" if isinstance(value, float) and 0 < abs(value) < 1e-3 else number(value, 4)
    return f"{shown} {unit}" if unit not in ("", "1", "count") else shown


def _own(column: str) -> Callable[[Row], str]:
    """A value in the unit that its row names."""
    return lambda row: quantity(row[column], str(row["unit"]))


def _signed(*names: str) -> Callable[[Row], str]:
    """An error in percent, or from which to which."""
    return lambda row: " to ".join(f"{row[name]:+.2f} %" for name in names if row[name] is not None)


def _span(row: Row) -> str:
    return f"{quantity(row['low'], row['unit'])} - {quantity(row['high'], row['unit'])}"


def _errors(row: Row) -> str:
    return f"{quantity(row['median_percent'], '%')}, {quantity(row['p90_percent'], '%')}".strip(", ")


def _two(first: str, one: str, second: str, other: str) -> Callable[[Row], str]:
    return lambda row: f"{quantity(row[first], one)}, {quantity(row[second], other)}".strip(", ")


def _number(column: str) -> Callable[[Row], str]:
    return lambda row: quantity(row[column], "")


def _of(**wanted: Any) -> Callable[[Row], bool]:
    return lambda row: all(row[name] == value for name, value in wanted.items())


KERNEL: Mapping[str, str | Callable[[Row], str]] = {
    "kernel": lambda r: " ".join(w for w in (r["kernel"], r["step"]) if w), "shape": "shape", "dtype": "dtype",
    "P50": "optimised_p50_us", "against": "baseline", "its P50": "baseline_p50_us", "speedup P50": "speedup_p50",
    "P95": "speedup_p95", "ours is": "verdict", "of roof": "share_of_roof", "max abs error": "max_abs_error",
}  # fmt: skip
MEDIAN: Mapping[str, str | Callable[[Row], str]] = {
    "points": "points", "median": "median_percent", "p90": "p90_percent"
}  # fmt: skip
FIRST_OF = ("ceilings", "factors")  # where several files have the same rows, those of the first
SMALL = "2048x1024"  # bound by its launch
LENGTHS = ("layer_norm", "rms_norm", "softmax")  # timed at the same shapes
VIEWS: dict[str, View] = {
    "ceilings": ("ceilings", lambda r: r["group"] == "ceiling" and r["datasheet"] is not None, {
        "ceiling": "name", "measured": _own("value"), "datasheet": _own("datasheet"), "share": "share_of_datasheet",
    }),
    "factors": ("ceilings", _of(group="factor"), {"factor": "name", "value": _own("value"), "interval": _span}),
    "accuracy": ("accuracy", _of(kind="class"), {
        "what": "name", **MEDIAN, "target median": "target_median_percent", "target p90": "target_p90_percent",
        "met": "met",
    }),
    "peers": ("accuracy", _of(kind="peer"), {
        "what": "name", "predictor": "who", **MEDIAN, "CHIP, same points: median": "chip_median_percent",
        "p90 ": "chip_p90_percent",
    }),
    "stages": ("accuracy", _of(kind="stage"), {}),
    "operators": ("accuracy", _of(kind="operator"), {
        "operator": "name", "shapes": "points", "median error": "median_percent", "p90": "p90_percent",
    }),
    "runs": ("runs", _of(status="ok"), {
        "model": "model", "engine": "engine", "batch": "batch", "prompt": "prompt", "output": "output",
        "tokens/s": _number("tokens_per_s"), "TTFT P50": "ttft_p50_ms", "P95": "ttft_p95_ms",
        "TPOT P50": "tpot_p50_ms", "P95 ": "tpot_p95_ms", "memory": "vram_bytes",
        "J/token": _number("joules_per_token"),
    }),
    "latency": ("runs", _of(status="ok"), {
        "engine": lambda r: f"`{' '.join(w for w in (r['engine'], r['variant']) if w)}`",
        "tokens/s": _number("tokens_per_s"), "latency P50": "latency_p50_ms", "P95": "latency_p95_ms",
        "TTFT P50": "ttft_p50_ms", "TPOT P50": "tpot_p50_ms", "VRAM": "vram_bytes",
        "J/token": _number("joules_per_token"), "GPU busy in decode": "busy_decode",
    }),
    "kernels": ("kernels", _of(), KERNEL),
    "kernel-small": ("kernels", _of(shape=SMALL), KERNEL),
    "kernel-lengths": ("kernels", lambda r: r["kernel"] in LENGTHS, {}),
    "kernel-steps": ("kernels", _of(kernel="row_normalize"), {}),
    "hgemm-ladder": ("kernels", _of(kernel="hgemm"), {}),
    "hgemm-products": ("kernels", _of(kernel="hgemm"), {}),
    "replay": ("replays", _of(), {
        "step": "title", "whole": "full_model_us", "from its kernels": "from_kernels_us",
        "error": _signed("error_percent"), "of GPU-busy time": _signed("busy_error_percent"),
        "unexplained": _signed("unexplained_percent"),
        "launches, GPU time replayed": _two("launches_covered", "share", "time_covered", "share"),
        "median kernel": _two("kernel_error_percent", "%", "kernel_error_us", "us"),
        "same GEMM kernel": "same_kernel",
        "energy of its kernels": _signed("energy_low_percent", "energy_high_percent"),
    }),
}  # fmt: skip


def _stages(rows: Iterable[Row]) -> list[list[str]]:
    """A row for each class, a column for each stage."""
    by: dict[str, dict[str, str]] = {}
    for row in rows:
        stage, what = str(row["name"]).split(": ", 1)
        by.setdefault(what, {})[stage] = _errors(row)
    stages = list(dict.fromkeys(stage for found in by.values() for stage in found))
    lines = [[what, *(found.get(stage, "") for stage in stages)] for what, found in by.items()]
    return [["median, p90 of the error", *stages], *lines]


PIVOTS: dict[str, Callable[[Iterable[Row]], list[list[str]]]] = {  # views whose columns come from the rows
    "stages": _stages,
    "kernel-lengths": kernel_tables.lengths,
    "kernel-steps": kernel_tables.steps,
    "hgemm-ladder": kernel_tables.ladder,
    "hgemm-products": kernel_tables.products,
}


def table(summary: Summary, view: str) -> str:
    """A view as a Markdown table; where several files have the same rows, of the first."""
    if view not in VIEWS:
        raise ChipError(f"no table {view!r} for a page; there are {', '.join(VIEWS)}")
    name, wanted, shown = VIEWS[view]
    rows = [r for r in summary.tables[name] if wanted(r)]
    if view in FIRST_OF and rows:
        rows = [r for r in rows if r["source"] == rows[0]["source"]]
    if not rows:
        raise ChipError(f"the results have nothing for the table {view!r}")
    units = {c.name: c.unit for c in columns.TABLES[name]}

    def cell(row: Row, how: str | Callable[[Row], str]) -> str:
        return quantity(row[how], units[how]) if isinstance(how, str) else how(row)

    lines = (
        PIVOTS[view](rows) if view in PIVOTS else [[*shown], *([cell(r, how) for how in shown.values()] for r in rows)]
    )
    lines.insert(1, ["---"] * len(lines[0]))
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


@cache
def _summary(results: str, root: Path) -> Summary:
    return sources.gather([root / word for word in results.split()])


def filled(text: str, root: Path) -> str:
    """The page with every marked table made anew."""
    return MARKED.sub(lambda m: m["head"] + table(_summary(m["results"], root), m["view"]), text)


def main(words: Iterable[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chip.show.report.readme", description="Write the tables of Markdown pages."
    )
    parser.add_argument("pages", metavar="PAGE", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when a table is stale")
    args = parser.parse_args([*words])
    stale = 0
    for page in args.pages:
        try:
            old = page.read_text(encoding="utf-8")
            new = filled(old, Path())
            if new != old and not args.check:
                output.write(page, new, output.ANY)
        except (ChipError, OSError) as e:
            print(f"{page}: {e}", file=sys.stderr)
            return 2
        if new != old:
            stale += 1
            print(f"{page}: {'stale' if args.check else 'written'}")
    return 1 if stale and args.check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
