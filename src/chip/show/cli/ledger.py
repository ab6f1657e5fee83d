"""`chip validate --by-operator`: captured steps compared with their predictions, role by role."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from chip.explain.ledger import Ledger, ledger, summary
from chip.files import traces
from chip.hardware import gpus
from chip.show.cli.text import Column, duration, percent, signed, table
from chip.types import ChipError

SCHEMA = "chip.ledger/1"


def run(args: argparse.Namespace) -> int:
    ledgers = [one for path in _files(args.runs) if (one := _ledger(path, args.gpu, args.engine)) is not None]
    if not ledgers:
        raise ChipError("no trace to judge" + (f" of engine {args.engine}" if args.engine else ""))
    print(json.dumps(document(ledgers), indent=1) if args.json else render(ledgers))
    return 0


def _files(names: Iterable[str]) -> list[Path]:
    out: list[Path] = []
    for name in names:
        path = Path(name)
        out += sorted(path.glob("*.json")) if path.is_dir() else [path]
    return out


def _ledger(path: Path, gpu: str, engine: str) -> Ledger | None:
    _, trace = traces.read(path)
    if engine not in ("", trace.engine):
        return None
    name = gpu or gpus.match_device(trace.device)
    if not name:
        raise ChipError(f"{path}: no GPU is known for {trace.device}; give --gpu PROFILE.json")
    return ledger(trace, name)


ROLES: tuple[Column, ...] = (
    ("role", lambda r: r.role, str), ("steps", lambda r: r.ledgers, str),
    ("predicted / measured", lambda r: r.ratio or None, "{:.2f}".format),
    ("of the step", lambda r: r.error_share, signed),
)  # fmt: skip
STEPS: tuple[Column, ...] = (
    ("step", lambda one: one.title, str), ("in kernels", lambda one: one.measured_s, duration),
    ("predicted", lambda one: one.predicted_s, duration),
    ("error", lambda one: one.predicted_s / one.measured_s - 1, percent), ("kernels", lambda one: one.kernels),
    ("whole step", lambda one: one.step_s or None, duration),
)  # fmt: skip


def render(ledgers: Sequence[Ledger]) -> str:
    """The roles first, by what they add to the error of a step; then every step."""
    parts = []
    for engine, phase in dict.fromkeys((one.engine, one.phase) for one in ledgers):
        mine = [one for one in ledgers if (one.engine, one.phase) == (engine, phase)]
        title = f"{engine}, {phase}: {len(mine)} steps of {len({one.model for one in mine})} models, median over steps"
        parts.append(f"{title}\n{table(summary(mine), ROLES)}")
    return "\n\n".join([*parts, table(ledgers, STEPS)])


def document(ledgers: Sequence[Ledger]) -> dict[str, Any]:
    steps = []
    for one in ledgers:
        about = {key: getattr(one, key) for key in ("model", "engine", "phase", "batch", "prompt")}
        times = {"step": one.step_s, "kernels": one.measured_s, "predicted": one.predicted_s, "gaps": one.gaps_s}
        roles = [
            {"role": e.role, "calls": e.calls, "predicted_us": e.predicted_s * 1e6, "us": e.measured_s * 1e6}
            for e in one.entries
        ]
        about |= {f"{name}_ms": seconds * 1e3 for name, seconds in times.items()}
        steps.append({**about, "kernels": one.kernels, "roles": roles})
    return {"schema": SCHEMA, "steps": steps}
