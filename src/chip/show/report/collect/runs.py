"""Real inference runs of `chip bench`."""

from __future__ import annotations

from typing import Any

from chip import stats
from chip.decoders import library
from chip.files import runs
from chip.files.runs import Run
from chip.hardware import gpus
from chip.show.report.sources import Opened
from chip.show.report.summary import Summary

SCHEMAS = ("chip.runs",)
ORDER = 2
RUN = ("status", "reason", "weights", "engine_version")
MEMORY = ("device_peak_bytes", "allocated_peak_bytes", "process_peak_bytes")  # the first that was read


def collect(opened: Opened, out: Summary) -> int:
    _, held = runs.read(opened.path)
    for run in held.runs:
        s = run.scenario
        device = str(run.device or opened.environment.get("device") or "")
        about = {key: getattr(run, key) for key in ("model", "engine", "variant", *RUN)}
        about |= {key: getattr(s, key) for key in ("dtype", "batch", "prompt", "output", "tp")}
        about |= {"bundled": run.model in library.names(), "gpu": device or None, "flags": ", ".join(run.flags)}
        about |= {"source": opened.name, "question": _question(run, device)}
        out.add("runs", **about, **(_numbers(run) if run.status == "ok" else {}))
    out.runs += [(opened.name, run) for run in held.runs if run.status == "ok"]
    return len(held.runs)


def _question(run: Run, device: str) -> str | None:
    """The same as the explorer is asked it, where it knows model and GPU."""
    gpu, s = gpus.match_device(device), run.scenario
    if run.model not in library.names() or not gpu:
        return None
    sizes = f"batch={s.batch}&prompt={s.prompt}&output={s.output}"
    return f"model={run.model}&gpu={gpu}&engine={run.engine}&dtype={s.dtype}&tp={s.tp}&{sizes}"


def _numbers(run: Run) -> dict[str, Any]:
    steps = [ns for each in run.step_ns for ns in each]
    return {
        "repeats": len(run.ttft_ns),
        "tokens_per_s": run.tokens_per_s,
        "latency_p50_ms": run.e2e_s * 1e3,
        "latency_p95_ms": stats.quantile(run.e2e_ns, 0.95) / 1e6,
        "ttft_p50_ms": run.ttft_s * 1e3,
        "ttft_p95_ms": stats.quantile(run.ttft_ns, 0.95) / 1e6,
        "tpot_p50_ms": run.tpot_s * 1e3 if steps else None,
        "tpot_p95_ms": stats.quantile(steps, 0.95) / 1e6 if steps else None,
        "vram_bytes": next((run.memory[k] for k in MEMORY if k in run.memory), None),
        "joules_per_token": run.joules_per_token,
        "busy_prefill": run.busy.get("prefill"),
        "busy_decode": run.busy.get("decode"),
        "waits": ", ".join(run.waits),
    }
