"""What replaying gave: for each unique kernel its time alone, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from chip import artifact, codec, stats
from chip.types import ChipError

STATUSES = ("ok", "failed", "skipped")


@dataclass(frozen=True, slots=True)
class Replayed:
    """One unique kernel, run alone. `ok` has samples, anything else has a reason."""

    key: str  # of its signature
    status: str
    reason: str = ""
    name: str = ""  # of the kernel that really ran
    method: str = ""
    samples_ns: tuple[int, ...] = ()  # of the kernel itself, by the timer that captured it
    cold_ns: float | None = None  # median with all inputs cold, launched again and again
    gap_ns: float | None = None  # what one more launch adds to a graph, unprofiled, less the kernel itself
    load_ns: float | None = None  # what it takes longer under unbroken load than in short bursts
    burst_hz: float | None = None  # clock in bursts ...
    load_hz: float | None = None  # ... and under load
    joules: float | None = None  # of one run, idle power subtracted
    flags: tuple[str, ...] = ()
    again_ns: float | None = None  # median launched again and again, its code at hand; samples_ns are after others then

    @property
    def median_ns(self) -> float:
        return stats.median(self.samples_ns)


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


def write(path: Path, replay: Replay, environment: dict[str, Any], inputs: tuple[str, ...]) -> None:
    artifact.write(path, artifact.new(Replay.SCHEMA, codec.to_json(replay), environment, inputs), indent=None)


def read(path: Path) -> tuple[artifact.Artifact, Replay]:
    found = artifact.read(path, Replay.SCHEMA)
    replay = codec.from_json(Replay, found.data, str(path))
    for i, kernel in enumerate(replay.kernels):
        check(kernel, f"{path}: kernels[{i}]")
    return found, replay


def check(kernel: Replayed, where: str) -> None:
    if kernel.status not in STATUSES:
        raise ChipError(f"{where}: status {kernel.status!r} is not known; it is one of {', '.join(STATUSES)}")
    if (kernel.status == "ok") != bool(kernel.samples_ns):
        raise ChipError(f"{where}: ok means samples, anything else means none; status is {kernel.status!r}")
