"""`chip bench --server`: every request as its client saw it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from chip.simulator import figures, recorded
from chip.simulator.recorded import TrafficRun
from chip.validate.client_result import ClientResult, spread

NAME = "chip bench --server"


def results(rows: Sequence[Any], path: Path) -> list[ClientResult] | None:
    schema = rows[0].get("schema") if isinstance(rows[0], dict) else None
    if not str(schema).startswith(TrafficRun.SCHEMA.split("/")[0] + "/"):
        return None
    return [of_run(run, path) for run in recorded.read(path)[1].runs if run.status == "ok" and run.server]


def of_run(run: TrafficRun, path: Path) -> ClientResult:
    done = run.served()
    by_metric = figures.latencies(done)
    values = {
        "ttft": by_metric["ttft"], "tpot": by_metric["tpot"], "e2el": by_metric["e2e"],
        "itl": [us * 1e-6 for us in chain.from_iterable(run.gap_us)],
    }  # fmt: skip
    found = dict(pair for name, of in values.items() for pair in spread(name, [1e3 * s for s in of]))
    answered = [i for i, last in enumerate(run.last_s) if last >= 0]
    took_s = max(run.last_s) - min(run.came_s)
    found |= {
        "output_throughput": sum(run.output[i] for i in answered) / took_s,
        "request_throughput": len(answered) / took_s,
    }
    busy_s = run.counters.get("cpu_s.server_main", 0.0)
    work = (len(answered), sum(run.prompt), run.steps, sum(len(gaps) + 1 for gaps in run.gap_us), busy_s)
    return ClientResult(
        NAME, path, run.model, run.traffic(), found, gpu=run.device, tp=run.tp, ep=run.ep, dtype=run.dtype,
        server=run.engine, version=run.engine_version, settings=run.scheduler,
        schema=TrafficRun.SCHEMA, loop=work if busy_s and run.gap_us else (),
    )  # fmt: skip
