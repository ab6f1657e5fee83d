"""What `chip bench` shows: a table over the points, and in one line why the device sat idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chip import stats
from chip.cli.text import duration, gib, number, percent, table
from chip.runs import Run
from chip.types import DISTURBED

SCHEMA = "chip.bench/1"
FIRST_OVER = 1.2  # a first repeat slower than the median by this much has a column of its own
MEMORY = ("allocated_peak_bytes", "process_peak_bytes")  # what torch took; on a CPU what the process took


def numbers(run: Run) -> dict[str, Any]:
    """The derived figures of a run, in SI; the samples stay in the file."""
    steps = [ns * 1e-9 for each in run.step_ns for ns in each]
    return {
        "ttft_s": run.ttft_s,
        "ttft_p95_s": stats.quantile(run.ttft_ns, 0.95) * 1e-9,
        "tpot_s": run.tpot_s if steps else None,
        "step_p50_s": stats.median(steps) if steps else None,
        "step_p95_s": stats.quantile(steps, 0.95) if steps else None,
        "e2e_s": run.e2e_s,
        "e2e_p95_s": stats.quantile(run.e2e_ns, 0.95) * 1e-9,
        "tokens_per_s": run.tokens_per_s,
        "tokens_per_s_request": run.tokens_per_s / run.scenario.batch,
        "joules_per_token": run.joules_per_token,
        "joules_per_token_with_idle": run.joules_per_token_with_idle,
        "idle": _idle(run),
    }


def _idle(run: Run) -> dict[str, float]:
    return {phase: 1 - share for phase, share in run.busy.items()}


def document(runs: Sequence[Run], file: str) -> dict[str, Any]:
    return {"schema": SCHEMA, "file": file, "runs": [_entry(r) for r in runs]}


def _entry(run: Run) -> dict[str, Any]:
    s = run.scenario
    head = {
        "model": run.model,
        "engine": run.engine,
        "variant": run.variant,
        "batch": s.batch,
        "prompt": s.prompt,
        "output": s.output,
        "dtype": s.dtype,
        "status": run.status,
    }
    if run.status != "ok":
        return {**head, "reason": run.reason}
    said = {"text": list(run.text)} if run.text else {}
    rest = {
        "memory": run.memory,
        "waits": list(run.waits),
        "setup_s": run.setup_s,
        "flags": list(run.flags),
        "disturbed": disturbed(run),
    }
    return {**head, "repeats": len(run.ttft_ns), **numbers(run), **rest, **said}


def render(runs: Sequence[Run]) -> str:
    done = [r for r in runs if r.status == "ok"]
    parts = []
    if done:
        title = f"{done[0].device}, {', '.join(dict.fromkeys(r.engine_version for r in done))}"
        rows = [_row(r) for r in done]
        filled = [k for k in rows[0] if any(row[k] for row in rows)]
        shown = [{k: row[k] for k in filled} for row in rows]
        right = [k for k in filled if k not in ("model", "engine")]
        if hit := [r for r in done if disturbed(r)]:
            parts += [
                f"DISTURBED: {disturbed(hit[0])[0]} ({len(hit)} of {len(done)} points); measure again when idle",
                "",
            ]
        parts += [title, "", table(shown, right=right, keep=("batch", "prompt", "TTFT", "TPOT"))]
    if story := idle_story(done):
        parts += ["", story]
    parts += [f"failed: {_name(r)}: {r.reason}" for r in runs if r.status != "ok"]
    parts += _grouped([(f, r) for r in done for f in (*r.flags, *(r.energy.flags if r.energy else ()))])
    parts += [f"\n{_name(r)} said: {said}" for r in done for said in r.text]
    return "\n".join(parts)


def disturbed(run: Run) -> list[str]:
    """How another process was seen to use the machine while a point was timed."""
    return [f.removeprefix(DISTURBED) for f in run.flags if f.startswith(DISTURBED)]


def _row(r: Run) -> dict[str, str]:
    n, s = numbers(r), r.scenario
    memory = next((r.memory[key] for key in MEMORY if key in r.memory), None)
    return {
        "model": r.model,
        "engine": f"{r.engine} {r.variant}".strip(),
        "dtype": s.dtype,
        "batch": str(s.batch),
        "prompt": str(s.prompt),
        "output": str(s.output),
        "TTFT": duration(n["ttft_s"]),
        "TPOT": duration(n["tpot_s"]) if n["tpot_s"] else "",
        "1st repeat": _first(r),
        "step P95": duration(n["step_p95_s"]) if n["step_p95_s"] else "",
        "e2e": duration(n["e2e_s"]),
        "e2e P95": duration(n["e2e_p95_s"]),
        "tok/s": number(n["tokens_per_s"], 4),
        "a request": number(n["tokens_per_s_request"], 4),
        "memory": gib(memory) if memory else "",
        "J/token": _joules(n["joules_per_token"]),
        "with idle": _joules(n["joules_per_token_with_idle"]),
        "idle in prefill / decode": " / ".join(percent(v) for v in n["idle"].values()),
        "repeats": str(len(r.ttft_ns)),
    }


def _joules(value: float | None) -> str:
    return "" if value is None else number(value)


def markdown(runs: Sequence[Run]) -> str:
    """A table for a README: what a request takes under each engine, end to end."""
    rows = []
    for r in (r for r in runs if r.status == "ok"):
        n, memory = numbers(r), next((r.memory[key] for key in MEMORY if key in r.memory), None)
        rows.append(
            {
                "model": r.model,
                "engine": f"`{r.engine}`" + (f" `{r.variant}`" if r.variant else ""),
                "point": r.scenario.name,
                "tokens/s": number(n["tokens_per_s"], 4),
                "latency P50": duration(n["e2e_s"]),
                "P95": duration(n["e2e_p95_s"]),
                "peak VRAM": gib(memory) if memory else "",
                "J/token": _joules(n["joules_per_token"]),
                "with idle": _joules(n["joules_per_token_with_idle"]),
                "GPU idle in decode": percent(n["idle"]["decode"]) if "decode" in n["idle"] else "",
            }
        )
    if not rows:
        return "(nothing)"
    alike = [c for c in ("model", "point") if len({row[c] for row in rows}) == 1]
    shown = [c for c in rows[0] if c not in alike and any(row[c] for row in rows)]
    lines = [shown, ["---" if c in ("model", "engine", "point") else "---:" for c in shown]]
    return "\n".join(f"| {' | '.join(line)} |" for line in [*lines, *([row[c] for c in shown] for row in rows)])


def _first(r: Run) -> str:
    """TPOT of the first repeat where it is another than the later ones'."""
    if not r.decodes or len(r.step_ns) < 2:
        return ""
    first = sum(r.step_ns[0]) / len(r.step_ns[0]) * 1e-9
    return duration(first) if first > FIRST_OVER * r.tpot_s else ""


def idle_story(runs: Sequence[Run]) -> str:
    """One line: how long the device sat idle where it did so most, and what for."""
    told = sorted((r for r in runs if r.busy), key=lambda r: max(_idle(r).values()))
    if not told:
        return ""
    worst = next((r for r in reversed(told) if r.waits), told[-1])
    shares = ", ".join(f"{percent(v)} of {phase}" for phase, v in _idle(worst).items())
    return f"GPU idle {shares} ({_name(worst)}): {'; '.join(worst.waits) or 'device-bound'}"


def _grouped(flags: Sequence[tuple[str, Run]]) -> list[str]:
    """Each remark once, with how many points it is about."""
    about: dict[str, list[Run]] = {}
    for flag, run in flags:
        about.setdefault(flag, []).append(run)
    return [f"note: {flag} ({_name(rs[0]) if len(rs) == 1 else f'{len(rs)} points'})" for flag, rs in about.items()]


def _name(r: Run) -> str:
    return " ".join(w for w in (r.model, r.engine, r.variant, r.scenario.name) if w)
