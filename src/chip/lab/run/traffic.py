"""Real traffic through a real engine: arrivals by the clock, first and last token of every request.

The engine is stepped in its own process, and requests are admitted between steps: what `chip simulate` simulates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
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
        return TrafficRun(
            model=self.job.model,
            engine=vllm.NAME,
            dtype=self.job.dtype,
            workload=w.name,
            rate_per_s=rate,
            seed=seed,
            status="ok",
            arrival_s=tuple(round(t, 6) for t in w.arrival_s),
            prompt=tuple(w.prompt),
            output=tuple(answer["output"]),
            first_s=tuple(answer["first_s"]),
            last_s=tuple(answer["last_s"]),
            blocks=tuple(w.blocks),
            block_tokens=w.block_tokens,
            steps=answer["steps"],
            wall_s=answer["wall_s"],
            variant=self.job.variant,
            scheduler=scheduler_of(self.opened["settings"]),
            engine_version=f"vllm {self.opened['version']}",
            settings=without_home({**self.opened["settings"], "torch": self.opened["torch"]}),
            method=METHOD,
            device=self.opened["device"],
            launch_ns=tuple(answer["launch_ns"]),
            weights=self.job.weights,
            host_s=answer["host_s"],
        )


def scheduler_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Of the engine's configuration what the simulator takes, by the same names."""
    config = settings.get("config", {})
    scheduler, cache = config.get("scheduler_config", {}), config.get("cache_config", {})
    found = {name: scheduler[name] for name in SCHEDULER if scheduler.get(name) is not None}
    for name in ("num_gpu_blocks", "block_size", "enable_prefix_caching"):
        if cache.get(name) is not None:
            found[name] = cache[name]
    found.setdefault("enable_prefix_caching", bool(settings.get("arguments", {}).get("enable_prefix_caching")))
    longest = config.get("model_config", {}).get("max_model_len")
    return found | ({"max_model_len": longest} if longest else {})


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
    held = recorded.resume(path, here)
    done: list[TrafficRun] = []
    for job in jobs:
        asked = [(rate, w, _asked(job, engine, rate, w, seed, server)) for rate, w in traffic]
        known = {r.key: r for r in held.runs if r.status == "ok"}
        done += [known[run.key] for _, _, run in asked if run.key in known]
        left = [(rate, w, run) for rate, w, run in asked if run.key not in known]
        for run in _measured(job, left, seed, tell, engine, server) if left else ():
            held = recorded.added(held, run, job.config)
            recorded.write(path, held, here)
            done.append(run)
    return done


def _asked(job: Job, engine: str, rate: float, w: Workload, seed: int, server: bool) -> TrafficRun:
    """A run that only says what it would be of."""
    nothing = (0,) * len(w)
    about = (job.model, engine, job.dtype, w.name, rate, seed)
    return TrafficRun(*about, "asked", prompt=nothing, variant=job.variant, server=server, users=w.users)


def _measured(
    job: Job,
    left: Sequence[tuple[float, Workload, TrafficRun]],
    seed: int,
    tell: Callable[[str], None],
    engine: str,
    server: bool,
) -> Any:
    try:
        session = get(engine).traffic(job, server)
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
                yield session.serve(w, rate, seed)
            except ChipError as e:
                tell(f"{run.title}: {e}")
                gone = str(e) if isinstance(e, Lost) else ""
                yield _failed(run, str(e))


def _failed(run: TrafficRun, why: str) -> TrafficRun:
    about = (run.model, run.engine, run.dtype, run.workload, run.rate_per_s, run.seed)
    return TrafficRun(
        *about, "failed", without_home(why), variant=run.variant, server=run.server, users=run.users
    )  # fmt: skip
