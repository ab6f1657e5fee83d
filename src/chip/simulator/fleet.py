"""Traffic over one or several replicas of an engine: who gets which request, and what became of each."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from chip.simulator.engine import SimulatedEngine
from chip.simulator.lockstep import Lockstep
from chip.simulator.request import Request
from chip.simulator.workload import Workload
from chip.types import ChipError

ROUTERS = ("round-robin", "least-loaded", "prefix")
EveryFinish = Callable[["ServedRequests", int], bool]  # told of each request that ends; false stops the simulation


@dataclass(slots=True)
class ServedRequests:
    """What became of every request, by its place in the workload; times from the start, -1 where there is none."""

    arrival_s: array[float]
    queue_s: array[float]  # first scheduled
    first_s: array[float]
    last_s: array[float]
    output: array[int]  # tokens really given: fewer than asked where the context ended
    cached: array[int]
    preempted: array[int]
    replica: array[int]
    rejected: list[int] = field(default_factory=list)
    shortened: int = 0
    engines: list[SimulatedEngine] = field(default_factory=list)
    stopped: bool = False
    lockstep: int = 1  # engines whose steps go together

    @property
    def drivers(self) -> list[SimulatedEngine | Lockstep]:
        """What is told to go on: each engine for itself, or as many at once as share their experts."""
        size = self.lockstep
        if size == 1:
            return list(self.engines)
        return [Lockstep(self.engines[i : i + size]) for i in range(0, len(self.engines), size)]


def serve(
    make: Callable[[int], SimulatedEngine],
    workload: Workload,
    max_model_len: int,
    replicas: int = 1,
    router: str = "round-robin",
    every_finish: EveryFinish | None = None,
    lockstep: int = 1,
) -> ServedRequests:
    """Run a workload to its end. `make` gives the engine of each replica; of a replica with experts that several share,
    each of its `lockstep` engines."""
    if router not in ROUTERS:
        raise ChipError(f"--router {router[:40]!r}: must be one of {', '.join(ROUTERS)}")
    n = len(workload)
    times, counts = [array("d", [-1.0]) * n for _ in range(4)], [array("q", [-1]) * n for _ in range(4)]
    done = ServedRequests(times[0], times[1], times[2], times[3], counts[0], counts[1], counts[2], counts[3])
    done.lockstep = lockstep
    done.engines = [make(i) for i in range(replicas * lockstep)]
    choose = _router(router, done.engines, workload)
    loop = _closed if workload.users else _open
    loop(workload, done, max_model_len, choose, every_finish or _go_on)
    return done


def _go_on(_: ServedRequests, __: int) -> bool:
    return True


Choose = Callable[[int], int]


def _open(w: Workload, done: ServedRequests, longest: int, choose: Choose, every_finish: EveryFinish) -> None:
    engines, drivers = done.engines, done.drivers
    for i in range(len(w)):
        at = w.arrival_s[i]
        for driver in drivers:
            driver.advance(at)
        for engine in engines:
            if engine.finished and not _note(engine, done, every_finish):
                done.stopped = True
                return
        _submit(w, i, at, done, longest, choose)
    for driver in drivers:
        driver.advance(inf)
    for engine in engines:
        done.stopped |= not _note(engine, done, every_finish)


def _closed(w: Workload, done: ServedRequests, longest: int, choose: Choose, every_finish: EveryFinish) -> None:
    """Each user sends the next request as soon as the last one is answered."""
    ready = [0.0] * min(w.users, len(w))
    heapify(ready)
    sent, drivers = 0, done.drivers
    while sent < len(w) or any(e.load for e in done.engines):
        at = ready[0] if ready and sent < len(w) else inf
        for driver in drivers:
            driver.advance(at, stop_at_finish=True)
        for engine in done.engines:
            for request in engine.finished:
                heappush(ready, request.last_s)
            if not _note(engine, done, every_finish):
                done.stopped = True
                return
        if at < inf and ready[0] >= at and all(e.now_s >= at or not e.load for e in done.engines):
            heappop(ready)
            if not _submit(w, sent, at, done, longest, choose):
                heappush(ready, at)
            sent += 1


def _submit(w: Workload, i: int, at: float, done: ServedRequests, longest: int, choose: Choose) -> bool:
    prompt, output = w.prompt[i], w.output[i]
    done.arrival_s[i] = at
    if prompt >= longest:  # as vLLM does: no room for an answer
        done.rejected.append(i)
        return False
    if prompt + output > longest:
        output = longest - prompt
        done.shortened += 1
    replica = choose(i)
    engine = done.engines[replica]
    path = engine.pool.path(w.blocks[i][: prompt // w.block_tokens], w.block_tokens) if w.blocks else ()
    done.replica[i], done.output[i] = replica // done.lockstep, output
    engine.submit(Request(i, at, prompt, output, path))
    return True


def _note(engine: SimulatedEngine, done: ServedRequests, every_finish: EveryFinish) -> bool:
    go_on = True
    for r in engine.finished:
        i = r.index
        done.queue_s[i], done.first_s[i], done.last_s[i] = r.queue_s, r.first_s, r.last_s
        done.cached[i], done.preempted[i] = r.cached, r.preempted
        go_on = every_finish(done, i) and go_on
    engine.finished.clear()
    return go_on


def _router(name: str, engines: list[SimulatedEngine], w: Workload) -> Choose:
    if len(engines) == 1:
        return lambda i: 0
    if name == "round-robin":
        return lambda i: i % len(engines)

    def least_loaded(i: int) -> int:
        return min(range(len(engines)), key=lambda k: (engines[k].load, k))

    def prefix(i: int) -> int:
        """Where most of the prompt lies already; among equals the least loaded."""
        if not w.blocks:
            return least_loaded(i)
        ids = w.blocks[i][: w.prompt[i] // w.block_tokens]

        def found(k: int) -> int:
            pool = engines[k].pool
            return pool.hit(pool.path(ids, w.block_tokens), None, w.prompt[i] - 1)

        return max(range(len(engines)), key=lambda k: (found(k), -engines[k].load, -k))

    return prefix if name == "prefix" else least_loaded
