"""`chip explain TRACE`: the kernels of anyone's trace by operator, under the roofs of a GPU."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from chip.show.cli import options
from chip.show.cli.capture import short
from chip.show.cli.text import Column, percent, table, us
from chip.types import ChipError

DEFAULT_GPU = "h200"
HEAD = 4096  # bytes in which a trace of our own names its schema


def run(args: argparse.Namespace) -> int:
    from chip.explain import breakdown
    from chip.hardware import gpus

    if args.plot or args.output_dir:
        raise ChipError("--plot and --output-dir are of an account with a REPLAY; a trace alone is printed")
    options.between(args, ("batch", "prompt"), 1, 1e7)
    trace = _read(Path(args.trace))
    if args.model:
        trace = breakdown.named(trace, args.model, args.engine, args.phase, args.batch, args.prompt, args.dtype)
    report = breakdown.breakdown(trace, args.gpu or gpus.match_device(trace.device) or DEFAULT_GPU)
    print(json.dumps(report, indent=1) if args.json else render(report))
    return 0


def _read(path: Path) -> Any:
    from chip.files import artifact, traces
    from chip.lab.replay import foreign

    with artifact.opened_bytes(path) as file:
        own = traces.Trace.SCHEMA.encode() in file.read(HEAD)
    return traces.read(path)[1] if own else foreign.trace_of(path)


def render(report: dict[str, Any]) -> str:
    several = f"{report['steps']} steps alike, their mean: " if report["steps"] > 1 else ""
    expected = f", expected {us(report['expected_us'])}" if report["expected_us"] else ""
    head = f"{report['title']} on {report['device'] or 'an unnamed device'}, roofs of {report['roofs']}"
    line = f"{several}{us(report['step_us'])} in kernels{expected}, {us(report['gaps_us'])} between them"
    worth = [f"{i}. {row['operator']}: {row['why']}" for i, row in enumerate(report["worth_work"], 1)]
    parts = [f"{head}\n{line}", table(report["rows"], ROWS)]
    if worth:
        parts.append("most time to lose\n" + "\n".join(worth))
    return "\n\n".join([*parts, *(["\n".join(f"note: {n}" for n in report["notes"])] if report["notes"] else [])])


ROWS: tuple[Column, ...] = (
    ("operator", lambda r: short(r["operator"], 44), str), ("kernels", "count", "{:.4g}".format), ("time", "us", us),
    ("share", "share", percent), ("bound", "bound", str), ("roof", "roof_us", us),
    ("x roof", "times_roof", "{:.2f}".format), ("expected", "expected_us", us),
    ("longest kernel", lambda r: short(r["kernel"], 44), str),
)  # fmt: skip
