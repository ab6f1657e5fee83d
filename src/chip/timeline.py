"""Two queues: the host, which prepares steps and launches kernels, and the device, which runs them in order.

A kernel starts when it has been launched and the one before it has ended. This is the one place where host and device
times meet: `chip predict` plays one step of it, `chip simulate` thousands. Layers that are alike are not walked through
one by one: what n of them do to the two queues has a closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# One operator: its name, so many kernels, launched one by one, and the seconds they take in all.
Launch = tuple[str, float, float]


class LaunchBlock(NamedTuple):
    """`repeat` times the same operators in the same order, and the kernels and seconds of all of them."""

    repeat: float
    launches: Sequence[Launch]
    kernels: float
    seconds: float

    @classmethod
    def of(cls, repeat: float, launches: Sequence[Launch]) -> LaunchBlock:
        return cls(repeat, launches, sum([x[1] for x in launches]), sum([x[2] for x in launches]))


class HostCost(NamedTuple):
    """What the host takes to launch an operator by itself: for the call, and for each of its kernels."""

    call_s: float
    kernel_s: float


class Event(NamedTuple):
    queue: str  # "host" or "device"
    name: str
    start_s: float
    seconds: float


class Timeline:
    """Where the two queues have got to, in seconds from the start."""

    __slots__ = ("device_s", "gap_s", "host_s", "scale", "worked_s")

    def __init__(self, scale: float = 1.0, gap_s: float = 0.0) -> None:
        """`scale`: times every kernel's own time; `gap_s`: the device's pause after each kernel."""
        self.scale, self.gap_s = scale, gap_s
        self.host_s = self.device_s = 0.0
        self.worked_s = 0.0  # of the device

    def prepare(self, name: str, seconds: float) -> None:
        """Work of the host alone."""
        self.host_s += seconds

    def graph(self, name: str, launch_s: float, device_s: float) -> None:
        """Many kernels as one launch."""
        self.host_s += launch_s
        self.device_s = (self.host_s if self.host_s > self.device_s else self.device_s) + device_s
        self.worked_s += device_s

    def layers(self, block: LaunchBlock, cost: HostCost) -> None:
        """One layer advances the host by h and the device by d, or, if the device has to wait, to where the host was
        plus `behind`: the longest way through the layer that begins with a launch. So after n layers the device is at
        the latest of: never having waited; having waited for the first layer's launches, or the last's, n - 1 layers of
        the slower queue later or before.
        """
        repeat, launches, kernels, seconds = block
        host_s = cost[0] * len(launches) + cost[1] * kernels
        device_s = seconds * self.scale + self.gap_s * kernels
        slower_s = (repeat - 1) * (host_s if host_s > device_s else device_s)
        never_s = self.device_s + repeat * device_s
        if never_s < self.host_s + host_s + device_s + slower_s:  # else no way through the layer is that long
            never_s = max(never_s, self.host_s + self._behind(launches, cost, host_s, device_s) + slower_s)
        self.device_s = never_s
        self.host_s += repeat * host_s
        self.worked_s += repeat * device_s

    def _behind(self, launches: Sequence[Launch], cost: HostCost, host_s: float, device_s: float) -> float:
        """From the last launch backwards, as far as one before could still be the longest way."""
        behind = after_s = 0.0
        (call_s, kernel_s), scale, gap_s = cost, self.scale, self.gap_s
        for _, kernels, seconds in reversed(launches):
            launch_s, run_s = call_s + kernel_s * kernels, seconds * scale + gap_s * kernels
            # waits for the last kernel of the operator, or for its first
            last_s = host_s + run_s / kernels + after_s
            after_s += run_s
            host_s -= launch_s
            first_s = host_s + launch_s / kernels + after_s
            if behind < first_s or behind < last_s:
                behind = first_s if first_s > last_s else last_s
            if host_s + device_s <= behind:
                break
        return behind

    def skip(self, steps: float, host_s: float, device_s: float) -> None:
        """So many more steps like the one before, each of so much of either queue."""
        ahead = max(host_s, device_s) * steps
        self.device_s += ahead
        self.host_s = max(self.host_s + steps * host_s, self.host_s)
        self.worked_s += steps * device_s


class Recorded(Timeline):
    """The same walked through kernel by kernel, with every event kept."""

    __slots__ = ("events",)

    def __init__(self, scale: float = 1.0, gap_s: float = 0.0) -> None:
        super().__init__(scale, gap_s)
        self.events: list[Event] = []

    def prepare(self, name: str, seconds: float) -> None:
        if seconds:
            self.events.append(Event("host", name, self.host_s, seconds))
        super().prepare(name, seconds)

    def graph(self, name: str, launch_s: float, device_s: float) -> None:
        self.events.append(Event("host", f"launch {name}", self.host_s, launch_s))
        super().graph(name, launch_s, device_s)
        self.events.append(Event("device", name, self.device_s - device_s, device_s))

    def layers(self, block: LaunchBlock, cost: HostCost) -> None:
        for _ in range(round(block.repeat)):
            for name, kernels, seconds in block.launches:
                launch_s = cost.call_s + cost.kernel_s * kernels
                run_s = seconds * self.scale + self.gap_s * kernels
                for _ in range(max(1, round(kernels))):
                    one, ran = launch_s / kernels, run_s / kernels
                    self.events.append(Event("host", f"launch {name}", self.host_s, one))
                    self.host_s += one
                    start = max(self.host_s, self.device_s)
                    self.events.append(Event("device", name, start, ran))
                    self.device_s = start + ran
                    self.worked_s += ran


def chrome(events: Sequence[Event], title: str) -> dict[str, object]:
    """As a trace that chrome://tracing and Perfetto open: one track for the host, one for the device."""
    tracks = {"host": 1, "device": 2}
    named: list[dict[str, object]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": title}},
        *(
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": tid, "args": {"name": queue}}
            for queue, tid in tracks.items()
        ),
    ]
    for e in events:
        times = {"ts": round(e.start_s * 1e6, 4), "dur": round(e.seconds * 1e6, 4)}
        named.append({"name": e.name, "ph": "X", "pid": 1, "tid": tracks[e.queue], **times})
    return {"traceEvents": named, "displayTimeUnit": "ms"}
