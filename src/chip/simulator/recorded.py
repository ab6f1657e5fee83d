"""Traffic that an engine really served: when each request came, when its first and its last token were there.

One artifact holds the runs of one device; it is rewritten whole after each run, so that what was measured is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from chip.engines.sampling import GREEDY
from chip.files import artifact, codec
from chip.files.runs import COMPARABLE
from chip.simulator.fleet import ServedRequests
from chip.simulator.workload import BLOCK_TOKENS, Workload
from chip.types import ChipError


@dataclass(frozen=True, slots=True)
class TrafficRun:
    """One model and workload as served. Times are seconds from the start; first_s and last_s are -1 for a request that
    the engine rejected. `ok` has requests, anything else has a reason."""

    SCHEMA: ClassVar[str] = "chip.traffic/1"

    model: str
    engine: str
    dtype: str
    workload: str
    rate_per_s: float  # 0: all at once
    seed: int
    status: str
    reason: str = ""
    arrival_s: tuple[float, ...] = ()
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    first_s: tuple[float, ...] = ()
    last_s: tuple[float, ...] = ()
    blocks: tuple[tuple[int, ...], ...] = ()
    block_tokens: int = BLOCK_TOKENS
    steps: int = 0
    wall_s: float = 0.0
    tp: int = 1
    ep: int = 1
    variant: str = ""  # what else was chosen for the engine; "" for its defaults
    scheduler: dict[str, Any] = field(default_factory=dict)  # settings the simulator takes: num_gpu_blocks, ...
    engine_version: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # the engine's whole configuration
    method: str = ""
    device: str = ""
    launch_ns: tuple[float, ...] = ()  # what the host took to launch a small kernel, before and after
    weights: str = "random"
    host_s: dict[str, float] = field(default_factory=dict)  # mean of a call: schedule, update, hand_out, admit
    server: bool = False  # an HTTP server before the engine, and times are those of its client
    sampling: str = GREEDY  # how tokens were chosen
    users: int = 0  # of a closed loop: `arrival_s` is then when each sent the next request
    sent_s: tuple[float, ...] = ()
    gap_us: tuple[tuple[int, ...], ...] = ()  # between the chunks of each request, to the nearest 10
    chunk_tokens: tuple[tuple[int, ...], ...] = ()  # of each chunk; empty where each had one
    counters: dict[str, float] = field(default_factory=dict)  # the server's own, and CPU seconds of its threads

    @property
    def key(self) -> tuple[str, str, str, str, str, float, int, int, bool, int]:
        """What makes it the same run again."""
        return (
            self.model, self.engine, self.variant, self.dtype, self.workload, self.rate_per_s, self.seed,
            len(self.prompt), self.server, self.users,
        )  # fmt: skip

    @property
    def title(self) -> str:
        rate = f"{self.rate_per_s:g} requests/s" if self.rate_per_s else "all at once"
        rate = f"{self.users} users" if self.users else rate
        words = (self.model, self.engine, "server" if self.server else "", self.variant, self.workload, rate)
        return " ".join(w for w in words if w)

    @property
    def came_s(self) -> tuple[float, ...]:
        """When each request came to what answered it: to a server when it was sent, as benchmarking clients count."""
        return self.sent_s if self.sent_s and not self.users else self.arrival_s

    def traffic(self) -> Workload:
        """What was asked, to be simulated."""
        w = Workload(self.workload, block_tokens=self.block_tokens, users=self.users)
        for i in range(len(self.prompt)):
            w.add(self.came_s[i], self.prompt[i], self.output[i], self.blocks[i] if self.blocks else ())
        return w

    def served(self) -> ServedRequests:
        """What became of it, as a simulation says it."""
        from array import array

        n = len(self.prompt)
        none = array("q", [0]) * n
        times = [array("d", t) for t in (self.came_s, self.came_s, self.first_s, self.last_s)]
        rejected = [i for i in range(n) if self.last_s[i] < 0]
        return ServedRequests(
            times[0], times[1], times[2], times[3], array("q", self.output), none, none, none, rejected
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrafficRuns:
    runs: tuple[TrafficRun, ...]
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)  # model name -> config.json


def is_traffic(path: Path) -> bool:
    """Whether a file says that it holds such runs."""
    if not path.is_file():
        return False
    raw = artifact.read_json(path)
    return isinstance(raw, dict) and str(raw.get("schema", "")).startswith(TrafficRun.SCHEMA.split("/")[0] + "/")


def read(path: Path) -> tuple[artifact.Artifact, TrafficRuns]:
    found = artifact.read(path, TrafficRun.SCHEMA)
    held = codec.from_json(TrafficRuns, found.data, str(path))
    for i, run in enumerate(held.runs):
        _check(run, f"{path}: runs[{i}]")
    return found, held


def _check(run: TrafficRun, where: str) -> None:
    if (run.status == "ok") != bool(run.prompt):
        raise ChipError(f"{where}: ok means requests, anything else means none; status is {run.status!r}")
    columns: tuple[Sequence[float], ...] = (run.arrival_s, run.prompt, run.output, run.first_s, run.last_s)
    may_be_empty = [c for c in (run.blocks, run.sent_s, run.gap_us, run.chunk_tokens) if c]
    if len({len(c) for c in (*columns, *may_be_empty)}) != 1:
        raise ChipError(f"{where}: arrival_s, prompt, output, first_s, last_s, blocks, ... must be of one length")
    for i in range(len(run.prompt)):
        first, last = run.first_s[i], run.last_s[i]
        if not all(math.isfinite(t) for t in (run.arrival_s[i], first, last)):
            raise ChipError(f"{where}: request {i} has a time that is not a number")
        if last >= 0 and not run.arrival_s[i] <= first <= last:
            raise ChipError(f"{where}: request {i} must have arrival_s <= first_s <= last_s")
        if run.prompt[i] < 1 or run.output[i] < 1:
            raise ChipError(f"{where}: request {i} must have a prompt and an output of at least one token")


def resume(path: Path, environment: Mapping[str, Any]) -> TrafficRuns:
    """What a file already holds; refused when it was measured with something else."""
    if not path.exists():
        return TrafficRuns(())
    held, found = read(path)
    artifact.check_versions(path, held.environment, environment, COMPARABLE)
    return found


def added(held: TrafficRuns, run: TrafficRun, config: Mapping[str, Any]) -> TrafficRuns:
    """With one more run; the same one again takes the place of the old."""
    kept = {r.key: r for r in held.runs}
    return replace(held, runs=tuple({**kept, run.key: run}.values()), configs={**held.configs, run.model: dict(config)})


def write(path: Path, held: TrafficRuns, environment: Mapping[str, Any], inputs: Sequence[str] = ()) -> None:
    made = artifact.new(TrafficRun.SCHEMA, codec.to_json(held), dict(environment), inputs)
    artifact.write(path, made, indent=None)
