"""What `chip bench` shows: a table over the points, or over live traffic, and in one line why the device sat idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chip import stats
from chip.files.runs import Run
from chip.show.cli.text import Column, amount, digits, disturbed, duration, gib, ms, number, once, percent, table
from chip.simulator.recorded import TrafficRun
from chip.types import DISTURBED, Scenario
from chip.validate.traffic import measured

SCHEMA, TRAFFIC = "chip.bench/1", "chip.bench_traffic/1"
FIRST_OVER = 1.2  # a first repeat slower than the median by this much has a column of its own
MEMORY = ("allocated_peak_bytes", "process_peak_bytes")  # what torch took; on a CPU what the process took
Row = Mapping[str, Any]


def document(runs: Sequence[Run], file: str) -> dict[str, Any]:
    return {"schema": SCHEMA, "file": file, "runs": [_entry(r) for r in runs]}


def _entry(run: Run) -> dict[str, Any]:
    """The derived figures of a run, in SI; the samples stay in the file."""
    s, steps = run.scenario, [ns * 1e-9 for each in run.step_ns for ns in each]
    head: dict[str, Any] = {"model": run.model, "engine": run.engine, "variant": run.variant}
    head |= {"batch": s.batch, "prompt": s.prompt, "output": s.output, "dtype": s.dtype, "status": run.status}
    if run.status != "ok":
        return {**head, "reason": run.reason}
    return {
        **head,
        "repeats": len(run.ttft_ns),
        "ttft_s": run.ttft_s,
        "ttft_p95_s": stats.quantile(run.ttft_ns, 0.95) * 1e-9,
        "tpot_s": run.tpot_s if steps else None,
        "step_p50_s": stats.median(steps) if steps else None,
        "step_p95_s": stats.quantile(steps, 0.95) if steps else None,
        "e2e_s": run.e2e_s,
        "e2e_p95_s": stats.quantile(run.e2e_ns, 0.95) * 1e-9,
        "tokens_per_s": run.tokens_per_s,
        "tokens_per_s_request": run.tokens_per_s / s.batch,
        "joules_per_token": run.joules_per_token,
        "joules_per_token_with_idle": run.joules_per_token_with_idle,
        "idle": {phase: 1 - share for phase, share in run.busy.items()},
        "memory": run.memory,
        "waits": list(run.waits),
        "setup_s": run.setup_s,
        "flags": list(run.flags),
        "disturbed": [f.removeprefix(DISTURBED) for f in run.flags if f.startswith(DISTURBED)],
        **({"text": list(run.text)} if run.text else {}),
    }


def _memory(row: Row) -> int | None:
    return next((row["memory"][key] for key in MEMORY if key in row["memory"]), None)


def _engine(row: Row) -> str:
    return f"{row['engine']} {row['variant']}".strip()


COLUMNS: tuple[Column, ...] = (
    ("model", "model"), ("engine", _engine), ("dtype", "dtype"), ("batch", "batch", str), ("prompt", "prompt", str),
    ("output", "output"), ("TTFT", "ttft_s", duration), ("TPOT", "tpot_s", duration),
    ("1st repeat", "first_s", duration), ("step P95", "step_p95_s", duration), ("e2e", "e2e_s", duration),
    ("e2e P95", "e2e_p95_s", duration), ("tok/s", "tokens_per_s", amount),
    ("a request", "tokens_per_s_request", amount), ("memory", _memory, gib), ("J/token", "joules_per_token", number),
    ("with idle", "joules_per_token_with_idle", number),
    ("idle in prefill / decode", lambda r: " / ".join(map(percent, r["idle"].values())), str), ("repeats", "repeats"),
)  # fmt: skip


def render(runs: Sequence[Run]) -> str:
    done = [r for r in runs if r.status == "ok"]
    rows = [{**_entry(r), "first_s": _first(r)} for r in done]
    parts = []
    if hit := [row["disturbed"][0] for row in rows if row["disturbed"]]:
        parts += [disturbed(f"{hit[0]} ({len(hit)} of {len(done)} points)", "measure"), ""]
    if done:
        versions = ", ".join(dict.fromkeys(r.engine_version for r in done))
        parts += [f"{done[0].device}, {versions}", "", table(rows, COLUMNS)]
    if story := idle_story(done):
        parts += ["", story]
    parts += [f"failed: {r.title}: {r.reason}" for r in runs if r.status != "ok"]
    flags = once((r.title, f) for r in done for f in (*r.flags, *(r.energy.flags if r.energy else ())))
    parts += [f"note: {f} ({rs[0] if len(rs) == 1 else f'{len(rs)} points'})" for f, rs in flags.items()]
    parts += [f"\n{r.title} said: {answer}" for r in done for answer in r.text]
    return "\n".join(parts)


MARKDOWN: tuple[Column, ...] = (
    ("model", "model"),
    ("engine", lambda r: f"`{r['engine']}`" + (f" `{r['variant']}`" if r["variant"] else ""), str),
    ("point", lambda r: Scenario(r["batch"], r["prompt"], r["output"]).name), *COLUMNS[12:13],
    ("latency P50", "e2e_s", duration), ("P95", "e2e_p95_s", duration), ("peak VRAM", _memory, gib), *COLUMNS[15:17],
    ("GPU idle in decode", "idle.decode", percent),
)  # fmt: skip


def markdown(runs: Sequence[Run]) -> str:
    """A table for a README: what a request takes under each engine, end to end."""
    return table([_entry(r) for r in runs if r.status == "ok"], MARKDOWN, markdown=True)


def _first(r: Run) -> float | None:
    """TPOT of the first repeat where it is another than the later ones'."""
    if not r.decodes or len(r.step_ns) < 2:
        return None
    first = sum(r.step_ns[0]) / len(r.step_ns[0]) * 1e-9
    return first if first > FIRST_OVER * r.tpot_s else None


def idle_story(runs: Sequence[Run]) -> str:
    """One line: how long the device sat idle where it did so most, and what for."""
    busiest_last = sorted((r for r in runs if r.busy), key=lambda r: -min(r.busy.values()))
    if not busiest_last:
        return ""
    worst = next((r for r in reversed(busiest_last) if r.waits), busiest_last[-1])
    shares = ", ".join(f"{percent(1 - busy)} of {phase}" for phase, busy in worst.busy.items())
    return f"GPU idle {shares} ({worst.title}): {'; '.join(worst.waits) or 'device-bound'}"


# -- live traffic ------------------------------------------------------------------------------------------------------
LATENCIES: tuple[Column, ...] = (
    ("model", "model"), ("workload", "workload"), ("rate/s", "rate_per_s", digits(4)),
    *((f"{title} {part}", f"{key}.{part}", ms) for title, key in (("TTFT", "ttft_ms"), ("TPOT", "tpot_ms"))
      for part in ("mean", "p50", "p99")),
    ("tok/s", "output_tokens_per_s", amount),
)  # fmt: skip


def traffic_document(runs: Sequence[TrafficRun], file: str) -> dict[str, Any]:
    """Figures of every run; its requests are in the file."""
    return {"schema": TRAFFIC, "file": file, "runs": [_traffic(r) for r in runs]}


def _traffic(run: TrafficRun) -> dict[str, Any]:
    about: dict[str, Any] = {"model": run.model, "engine": run.engine, "variant": run.variant, "workload": run.workload}
    about |= {"rate_per_s": run.rate_per_s, "requests": len(run.prompt), "status": run.status, "reason": run.reason}
    return about | ({**measured(run), "wall_s": run.wall_s, "steps": run.steps} if run.status == "ok" else {})


def render_traffic(runs: Sequence[TrafficRun]) -> str:
    done = [_traffic(run) for run in runs if run.status == "ok"]
    failed = [f"{run.title}: {run.status}: {run.reason}" for run in runs if run.status != "ok"]
    return "\n".join([*([table(done, LATENCIES)] if done else []), *failed])
