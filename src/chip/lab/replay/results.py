"""What replaying gave: for each unique kernel its time alone and in its place in the step, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from chip import stats
from chip.files import artifact, codec
from chip.files.traces import Timing
from chip.types import DISTURBED, ChipError

STATUSES = ("ok", "failed", "skipped")
NO_GRAPH = "not in a graph"  # flag of a kernel whose operator cannot be captured
JOURNAL = "chip.replay_journal/2"  # schema of what an interrupted replay has left


@dataclass(frozen=True, slots=True)
class Replayed:
    """One unique kernel, run again. `ok` has samples, anything else has a reason."""

    key: str  # of its signature
    status: str
    reason: str = ""
    name: str = ""  # of the kernel that really ran
    method: str = ""
    samples_ns: tuple[int, ...] = ()  # alone, launched again and again, by the timer that captured it
    cold_ns: float | None = None  # median of the same with all inputs cold
    gap_ns: float | None = None  # what one more launch adds to a graph, unprofiled, less the kernel itself
    load_ns: float | None = None  # what it takes longer under unbroken load than in short bursts
    burst_hz: float | None = None  # clock in bursts ...
    load_hz: float | None = None  # ... and under load
    joules: float | None = None  # of one run, idle power subtracted
    flags: tuple[str, ...] = ()
    placed_ns: float | None = None  # median over its places in the sequence of the step, by the same timer ...
    placed_mean_ns: float | None = None  # ... and mean: where memory lies may make some of them slower

    @property
    def median_ns(self) -> float:
        """Alone."""
        return stats.median(self.samples_ns)

    @property
    def model_ns(self) -> float:
        """As the model runs it: in its place where that is known, else alone."""
        return self.median_ns if self.placed_ns is None else self.placed_ns

    @property
    def spread_ns(self) -> float:
        """What the launches in the sequence take above their median, on average."""
        return 0.0 if self.placed_ns is None or self.placed_mean_ns is None else self.placed_mean_ns - self.placed_ns


class Placed(NamedTuple):
    """A kernel over its places in the sequence."""

    median_ns: float
    mean_ns: float


@dataclass(frozen=True, slots=True)
class Sequenced:
    """All calls of the step in the model's order, as one graph."""

    timing: Timing  # of the whole, without the profiler
    kernels_ns: float  # sum of its kernels, by the profiler
    launches: int

    @property
    def gap_ns(self) -> float:
        """Between two kernels, on average."""
        return (stats.median(self.timing.samples_ns) - self.kernels_ns) / self.launches


@dataclass(frozen=True, slots=True)
class Replay:
    SCHEMA: ClassVar[str] = "chip.replay/1"

    title: str
    device: str
    rule: str  # of the cache: producer, cold, hot
    warmup: int
    runs: int
    kernels: tuple[Replayed, ...]
    notes: tuple[str, ...] = ()
    sequence: Sequenced | None = None

    @property
    def disturbed(self) -> str:
        """How another process was seen to use the machine, "" where none was."""
        done = [k for k in self.kernels if k.status == "ok"]
        hit = [f for k in done for f in k.flags if f.startswith(DISTURBED)]
        return f"{hit[0].removeprefix(DISTURBED)} ({len(hit)} of {len(done)} kernels)" if hit else ""

    def with_places(self, sequence: Sequenced, places: Mapping[str, Placed]) -> Replay:
        """With what the sequence gave, by the keys of kernels."""
        kernels = tuple(
            replace(k, placed_ns=places[k.key].median_ns, placed_mean_ns=places[k.key].mean_ns)
            if k.key in places else k
            for k in self.kernels
        )  # fmt: skip
        return replace(self, kernels=kernels, sequence=sequence)


def write(path: Path, replay: Replay, environment: dict[str, Any], inputs: tuple[str, ...]) -> None:
    document = artifact.new(Replay.SCHEMA, codec.to_json(replay), environment, inputs)
    artifact.write(path, document, indent=None)


def read(path: Path) -> tuple[artifact.Artifact, Replay]:
    document = artifact.read(path, Replay.SCHEMA)
    replay = codec.from_json(Replay, document.data, str(path))
    for i, kernel in enumerate(replay.kernels):
        check(kernel, f"{path}: kernels[{i}]")
    if replay.sequence is not None and not (replay.sequence.launches > 0 and replay.sequence.timing.samples_ns):
        raise ChipError(f"{path}: sequence needs launches and samples")
    return document, replay


def check(kernel: Replayed, where: str) -> None:
    if kernel.status not in STATUSES:
        raise ChipError(f"{where}: status {kernel.status!r} is not known; it is one of {', '.join(STATUSES)}")
    if (kernel.status == "ok") != bool(kernel.samples_ns):
        raise ChipError(f"{where}: ok means samples, anything else means none; status is {kernel.status!r}")
