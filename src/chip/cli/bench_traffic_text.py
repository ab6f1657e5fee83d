"""What `chip bench --workload` shows: latency percentiles and output rate of each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chip.cli.text import duration, number, table
from chip.simulate.recorded import TrafficRun
from chip.validate.traffic import measured

SCHEMA = "chip.bench_traffic/1"


def document(found: Sequence[TrafficRun], file: str) -> dict[str, Any]:
    """Figures of every run; its requests are in the file."""
    return {"schema": SCHEMA, "file": file, "runs": [_row(r) for r in found]}


def _row(run: TrafficRun) -> dict[str, Any]:
    about: dict[str, Any] = {"model": run.model, "engine": run.engine, "variant": run.variant, "workload": run.workload}
    about |= {"rate_per_s": run.rate_per_s, "requests": len(run.prompt), "status": run.status, "reason": run.reason}
    return about | ({**measured(run), "wall_s": run.wall_s, "steps": run.steps} if run.status == "ok" else {})


def render(found: Sequence[TrafficRun]) -> str:
    rows, failed = [], []
    for run in found:
        if run.status != "ok":
            failed.append(f"{run.title}: {run.status}: {run.reason}")
            continue
        got = measured(run)
        row = {"model": run.model, "workload": run.workload, "rate/s": f"{run.rate_per_s:.4g}"}
        for title, name in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms")):
            row |= {f"{title} {part}": duration(got.get(f"{name}.{part}", 0) / 1e3) for part in ("mean", "p50", "p99")}
        rows.append({**row, "tok/s": number(got["output_tokens_per_s"], 4)})
    shown = [table(rows, right=tuple(rows[0])[2:], keep=tuple(rows[0])[2:])] if rows else []
    return "\n".join([*shown, *failed])
