"""A timeline that plays every kernel and records it, and its events as a trace for Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chip.engines.timeline import HostCost, LaunchBlock, Played, Timeline

TRACE = "chip.step_timeline/1"  # schema of the events as a trace for Perfetto


class Event(NamedTuple):
    queue: str  # "host" or "device"
    name: str
    start_s: float
    seconds: float


class Recorded(Timeline):
    """A timeline that plays every kernel and records it as an event."""

    __slots__ = ("events",)

    def __init__(self, scale: float = 1.0, gap_s: float = 0.0, ahead: bool = True) -> None:
        super().__init__(scale, gap_s, ahead)
        self.events: list[Event] = []

    def prepare(self, name: str, seconds: float) -> None:
        if seconds:
            self.events.append(Event("host", name, self.host_s, seconds))
        super().prepare(name, seconds)

    def graph(self, name: str, launch_s: float, device_s: float) -> None:
        self.events.append(Event("host", f"launch {name}", self.host_s, launch_s))
        self.events.append(Event("device", name, max(self.host_s + launch_s, self.device_s), device_s))
        super().graph(name, launch_s, device_s)

    def launch(self, step: Played, cost: HostCost) -> None:
        self.layers(step.blocks, cost)

    def layers(self, blocks: Sequence[LaunchBlock], cost: HostCost) -> None:
        for block in blocks:
            launches = block.launches
            for _ in range(round(block.repeat)):
                for name, kernels, seconds in zip(launches.names, launches.kernels, block.each_s):
                    launch_s = cost.of_one(name, kernels) / kernels
                    kernel_s = (seconds * self.scale + self.gap_s) / kernels
                    for _ in range(max(1, round(kernels))):
                        self.graph(name, launch_s, kernel_s)


def chrome(events: Sequence[Event], title: str) -> dict[str, object]:
    """The events as a trace for chrome://tracing and Perfetto: one track for the host, one for the device."""
    tracks = {"host": 1, "device": 2}
    named: list[dict[str, object]] = [{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": title}}]
    for queue, tid in tracks.items():
        named.append({"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": queue}})
    for e in events:
        times = {"ts": round(e.start_s * 1e6, 4), "dur": round(e.seconds * 1e6, 4)}
        named.append({"name": e.name, "ph": "X", "pid": 1, "tid": tracks[e.queue], **times})
    return {"schema": TRACE, "traceEvents": named, "displayTimeUnit": "ms"}
