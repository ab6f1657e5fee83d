"""Fit what vLLM's HTTP server takes to a record of `chip bench --server`: python benchmarks/server_terms.py RECORD

The event loop's seconds explain the CPU seconds of the server's first thread over all runs (non-negative least squares,
each run of equal weight); the core's are means of its parts in closed loops of decodes; the latency is what one user's
mean TTFT has beyond a simulation without it; and the turns are those that simulate mean TTFTs best.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from chip.engines.server import ServerCost
from chip.engines.vllm import server
from chip.files import artifact, codec
from chip.question import Question
from chip.simulator import recorded
from chip.simulator.fleet import ServedRequests
from chip.simulator.recorded import TrafficRun
from chip.simulator.setup import Fleet, run, setup
from chip.simulator.simulation import system_of
from chip.validate.clients import chip_bench
from chip.validate.host_fit import least_squares

TURNS = range(1, 7)
CORE = ("schedule", "execute", "sample", "update")


def mean_ttft_s(done: ServedRequests) -> float:
    return sum(first - at for first, at in zip(done.first_s, done.arrival_s)) / len(done.first_s)


def fitted(runs: Sequence[TrafficRun]) -> ServerCost:
    launched = [ns for r in runs for ns in r.launch_ns]
    launch_ns = sum(launched) / len(launched)
    work = [chip_bench.of_run(r, Path()).loop for r in runs]
    loop = least_squares([row[:-1] for row in work], [row[-1] for row in work])
    loops = [r for r in runs if r.users and sum(r.output) > 10 * len(r.prompt)]
    core = least_squares(
        [[1, sum(r.output) / r.steps] for r in loops], [sum(r.host_s[part] for part in CORE) for r in loops]
    )
    alone = next(r for r in runs if r.users == 1)
    system = {"gpu": "h200", "engine": "vllm", "engine_settings": alone.scheduler, "launch_ns": launch_ns}
    q = system_of(alone.model, system)
    terms = setup(Fleet(q)).surface.times.terms[0]
    admit_s = sum(r.host_s["admit"] for r in runs) / len(runs)
    cost = ServerCost(
        *loop,
        0.0, 0.0, server.MERGES_UP_TO, core[0] / terms.host_step_s, core[1] / terms.host_seq_s,
        admit_s / terms.request_s, terms.host_step_s,
    )  # fmt: skip
    cost = replace(cost, latency_s=max(0.0, mean_ttft_s(alone.served()) - simulated_s(q, cost, alone)))
    print(f"launch latency {launch_ns:.0f} ns, {len(runs)} runs")
    return min((replace(cost, turns=float(n)) for n in TURNS), key=lambda c: error(q, c, runs))


def simulated_s(q: Question, cost: ServerCost, r: TrafficRun) -> float:
    """The mean TTFT."""
    fleet = Fleet(q, server=cost)
    return mean_ttft_s(run(setup(fleet), fleet, r.traffic()))


def error(q: Question, cost: ServerCost, runs: Sequence[TrafficRun]) -> float:
    """Of mean TTFT, the mean over all runs."""
    return sum(abs(simulated_s(q, cost, r) / mean_ttft_s(r.served()) - 1) for r in runs) / len(runs)


def main(path: Path) -> None:
    read, held = recorded.read(path)
    cost = fitted(held.runs)
    print(cost)
    artifact.write(server.FILE, artifact.new(server.SCHEMA, codec.to_json(cost), read.environment, [read.id]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
