"""`chip validate --by-operator`: captured steps compared with their predictions, role by role."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from chip import hardware, traces
from chip.cli.text import duration, percent, table
from chip.ledger import Ledger, ledger, summary
from chip.types import ChipError

SCHEMA = "chip.ledger/1"
RIGHT = ("steps", "predicted / measured", "of the step")


def run(args: argparse.Namespace) -> int:
    found = [one for path in _files(args.runs) if (one := _ledger(path, args.gpu, args.engine)) is not None]
    if not found:
        raise ChipError("no trace to judge" + (f" of engine {args.engine}" if args.engine else ""))
    print(json.dumps(document(found), indent=1) if args.json else render(found))
    return 0


def _files(given: Iterable[str]) -> list[Path]:
    out: list[Path] = []
    for name in given:
        path = Path(name)
        out += sorted(path.glob("*.json")) if path.is_dir() else [path]
    return out


def _ledger(path: Path, gpu: str, engine: str) -> Ledger | None:
    _, trace = traces.read(path)
    if engine not in ("", trace.engine):
        return None
    name = gpu or hardware.match_device(trace.device)
    if not name:
        raise ChipError(f"{path}: no GPU is known for {trace.device}; give --gpu PROFILE.json")
    return ledger(trace, name)


def render(found: Sequence[Ledger]) -> str:
    """The roles first, by what they add to the error of a step; then every step."""
    parts = []
    for engine, phase in dict.fromkeys((one.engine, one.phase) for one in found):
        mine = [one for one in found if (one.engine, one.phase) == (engine, phase)]
        rows = [
            {
                "role": r.role,
                "steps": r.ledgers,
                "predicted / measured": f"{r.ratio:.2f}" if r.ratio else "-",
                "of the step": f"{100 * r.error_share:+.1f} %",
            }
            for r in summary(mine)
        ]
        title = f"{engine}, {phase}: {len(mine)} steps of {len({one.model for one in mine})} models, median over steps"
        shown = table(rows, right=RIGHT, keep=tuple(rows[0]))
        parts.append(f"{title}\n{shown}")
    steps = [
        {
            "step": one.title,
            "in kernels": duration(one.measured_s),
            "predicted": duration(one.predicted_s),
            "error": percent(one.predicted_s / one.measured_s - 1),
            "kernels": one.kernels,
            "whole step": duration(one.step_s) if one.step_s else "",
        }
        for one in found
    ]
    parts.append(table(steps, right=("in kernels", "predicted", "error", "kernels", "whole step"), keep=("step",)))
    return "\n\n".join(parts)


def document(found: Sequence[Ledger]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "steps": [
            {
                "model": one.model,
                "engine": one.engine,
                "phase": one.phase,
                "batch": one.batch,
                "prompt": one.prompt,
                "step_ms": one.step_s * 1e3,
                "kernels_ms": one.measured_s * 1e3,
                "predicted_ms": one.predicted_s * 1e3,
                "gaps_ms": one.gaps_s * 1e3,
                "kernels": one.kernels,
                "roles": [
                    {"role": e.role, "calls": e.calls, "predicted_us": e.predicted_s * 1e6, "us": e.measured_s * 1e6}
                    for e in one.entries
                ],
            }
            for one in found
        ],
    }
