"""A step of vLLM as a trace: every launch in the order it ran, with the step's own times from before the profiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chip import stats
from chip.files import traces
from chip.files.runs import Run
from chip.files.traces import Kernel, KernelEvent, Timing, Trace

Event = tuple[int, int, int]  # index of the kernel's name, start ns, duration ns
TIMED = {"prefill": "until every request has its first token", "decode": "mean decode step of a repeat"}


def write(folder: Path, run: Run, profile: Mapping[str, Mapping[str, Any]], config: Mapping[str, Any]) -> None:
    """One file for each phase that was profiled."""
    for phase, seen in profile.items():
        if seen.get("events"):
            s = run.scenario
            path = folder / f"{run.model}-{run.engine}-{phase}-{s.batch}x{s.prompt}.json"
            traces.write(path, _trace(run, phase, seen, config), {"device": run.device, "engine": run.engine_version})


def _trace(run: Run, phase: str, seen: Mapping[str, Any], config: Mapping[str, Any]) -> Trace:
    samples = run.ttft_ns if phase == "prefill" else tuple(round(sum(steps) / len(steps)) for steps in run.step_ns)
    events, whole = one_step([(n, start, took) for n, start, took in seen["events"]], seen["steps"])
    s = run.scenario
    return Trace(
        run.model, run.engine, phase, s.batch, s.prompt, s.dtype, run.device, "profiler", (),
        tuple(Kernel(name, _kind(name)) for name in seen["names"]),
        tuple(KernelEvent(n, start, took, 0, -1) for n, start, took in events),
        {"step": Timing(samples, TIMED[phase])},
        {} if whole else {"steps": f"{seen['steps']} steps that differ from each other, all of them kept"},
        config=dict(config),
    )  # fmt: skip


def _kind(name: str) -> str:
    return "memcpy" if name.startswith("Memcpy") else "memset" if name.startswith("Memset") else "kernel"


def one_step(events: Sequence[Event], steps: int) -> tuple[list[Event], bool]:
    """The median over steps that launch the same kernels in the same order, and whether they do."""
    size, rest = divmod(len(events), steps)
    if steps == 1:
        return list(events), True
    names = [n for n, _, _ in events]
    if rest or any(names[i * size : (i + 1) * size] != names[:size] for i in range(steps)):
        return list(events), False
    parts = [events[i * size : (i + 1) * size] for i in range(steps)]
    launched = []
    for launches in zip(*parts):
        start = stats.median([e[1] - part[0][1] for e, part in zip(launches, parts)])
        launched.append((launches[0][0], round(start), round(stats.median([e[2] for e in launches]))))
    return launched, True
