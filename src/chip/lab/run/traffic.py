"""Real traffic through a real engine: arrivals by the clock, first and last token of every request.

The engine is stepped in its own process, and requests are admitted between steps: what `chip simulate` simulates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from chip.lab.measure.device import Device
from chip.lab.measure.environment import environment
from chip.lab.run import Job, Lost, get, vllm
from chip.lab.run.grid import without_home
from chip.simulator import recorded
from chip.simulator.recorded import TrafficRun
from chip.simulator.workload import Workload
from chip.types import ChipError

METHOD = (
    "requests admitted between steps of the engine, in its own process, at their planned arrival or after; a token's "
    "time is when the step that gave it has returned"
)
MARGIN_S = 60.0  # beside the planned duration of the arrivals
SCHEDULER = ("max_num_seqs", "max_num_batched_tokens", "async_scheduling", "scheduler_reserve_full_isl", "watermark")
CACHE = ("num_gpu_blocks", "block_size", "enable_prefix_caching")


class ServesTraffic(AbstractContextManager["ServesTraffic"], Protocol):
    """An engine, or a server before one, with its model loaded."""

    def serve(self, w: Workload, rate: float, seed: int) -> TrafficRun: ...


class TrafficSession(vllm.VllmSession):
    def serve(self, w: Workload, rate: float, seed: int) -> TrafficRun:
        """One run of a workload; the prefix cache is empty before."""
        planned_s = w.arrival_s[-1] if len(w) else 0.0
        until = time.monotonic() + self.job.timeout_s + planned_s + MARGIN_S
        rows = [[w.arrival_s[i], w.prompt[i], w.output[i]] for i in range(len(w))]
        answer = self.worker.ask(
            "traffic", until, requests=rows, blocks=[list(b) for b in w.blocks], block_tokens=w.block_tokens
        )
        return run_of(
            self.job, self.opened, w, rate, seed,
            arrival_s=tuple(round(t, 6) for t in w.arrival_s),
            prompt=tuple(w.prompt),
            output=tuple(answer["output"]),
            first_s=tuple(answer["first_s"]),
            last_s=tuple(answer["last_s"]),
            steps=answer["steps"],
            wall_s=answer["wall_s"],
            method=METHOD,
            launch_ns=tuple(answer["launch_ns"]),
            host_s=answer["host_s"],
        )  # fmt: skip


def run_of(job: Job, opened: Mapping[str, Any], w: Workload, rate: float, seed: int, **measured: Any) -> TrafficRun:
    """A finished run: what the job and the opened engine say of it, and what was measured."""
    return TrafficRun(
        job.model, vllm.NAME, job.dtype, w.name, rate, seed, "ok",
        blocks=tuple(w.blocks),
        block_tokens=w.block_tokens,
        variant=job.variant,
        sampling=job.sampling,
        scheduler=scheduler_of(opened["settings"]),
        engine_version=f"vllm {opened['version']}",
        settings=without_home({**opened["settings"], "torch": opened["torch"]}),
        device=opened["device"],
        weights=job.weights,
        **measured,
    )  # fmt: skip


def scheduler_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The part of the engine's configuration that the simulator takes, by the same names."""
    config = settings.get("config", {})
    scheduler, cache = config.get("scheduler_config", {}), config.get("cache_config", {})
    settled = {name: scheduler[name] for name in SCHEDULER if scheduler.get(name) is not None}
    settled |= {name: cache[name] for name in CACHE if cache.get(name) is not None}
    settled.setdefault("enable_prefix_caching", bool(settings.get("arguments", {}).get("enable_prefix_caching")))
    longest = config.get("model_config", {}).get("max_model_len")
    return settled | ({"max_model_len": longest} if longest else {})


def measure(
    jobs: Sequence[Job],
    traffic: Sequence[tuple[float, Workload]],
    seed: int,
    path: Path,
    device: Device,
    tell: Callable[[str], None],
    engine: str,
    server: bool = False,
) -> list[TrafficRun]:
    """Every model under every workload; each is kept when it is done, and not measured again by the same command.
    `server`: through the engine's own HTTP server."""
    here = environment(device)
    file = recorded.resume(path, here)
    done: list[TrafficRun] = []
    for job in jobs:
        wanted = [(rate, w, _unmeasured(job, engine, rate, w, seed, server)) for rate, w in traffic]
        finished = {r.key: r for r in file.runs if r.status == "ok"}
        done += [finished[run.key] for _, _, run in wanted if run.key in finished]
        left = [(rate, w, run) for rate, w, run in wanted if run.key not in finished]
        for run in _serve_all(job, left, tell, engine) if left else ():
            file = recorded.added(file, run, job.config)
            recorded.write(path, file, here)
            done.append(run)
    return done


def _unmeasured(job: Job, engine: str, rate: float, w: Workload, seed: int, server: bool) -> TrafficRun:
    """A run that only says what it would be a run of."""
    about = (job.model, engine, job.dtype, w.name, rate, seed)
    return TrafficRun(*about, "asked", prompt=(0,) * len(w), variant=job.variant, server=server, users=w.users)


def _serve_all(
    job: Job, left: Sequence[tuple[float, Workload, TrafficRun]], tell: Callable[[str], None], engine: str
) -> Iterator[TrafficRun]:
    """One session for all of them, which share a seed and whether they go through the engine's server."""
    try:
        session = get(engine).traffic(job, left[0][2].server)
    except ChipError as e:
        tell(f"{job.model}: {e}")
        yield from (_failed(run, str(e)) for _, _, run in left)
        return
    with session:
        gone = ""
        for rate, w, run in left:
            if gone:
                yield _failed(run, gone)
                continue
            tell(f"{run.title}: {len(w)} requests")
            try:
                yield session.serve(w, rate, run.seed)
            except ChipError as e:
                tell(f"{run.title}: {e}")
                gone = str(e) if isinstance(e, Lost) else ""
                yield _failed(run, str(e))


def _failed(run: TrafficRun, why: str) -> TrafficRun:
    return replace(run, status="failed", reason=without_home(why), prompt=())
