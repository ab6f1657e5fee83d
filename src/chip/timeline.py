"""Two queues: the host, which prepares steps and launches kernels, and the device, which runs them in order.

A kernel starts when it has been launched and the one before it has ended. This is the one place where host and device
times meet: `chip predict` plays one step of it, `chip simulate` thousands. Layers that are alike are not walked through
one by one: what n of them do to the two queues has a closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import add
from typing import NamedTuple

EXPERTS = "experts"  # the role of a layer's experts
REMEMBERED = 64  # costs of launches, so that a fit which tries many runs in bounded memory


class RoleLaunches:
    """Operators that are launched in this order, each as so many kernels, one by one: what a model fixes."""

    __slots__ = ("_counted", "_known", "expert_count", "kernel_count", "kernels", "names")

    def __init__(self, names: tuple[str, ...], kernels: tuple[float, ...]) -> None:
        self.names, self.kernels, self.kernel_count = names, kernels, sum(kernels)
        self.expert_count = names.count(EXPERTS)
        # Kernels that a device can have waited for longest, from the last launch on: of each operator its last one and
        # its first. The operator, and its share of the seconds since the one before in this list.
        self._counted: list[tuple[int, float]] = []
        for i, k in reversed(list(enumerate(kernels))):
            self._counted += [(i, 1 / k), (i, (k - 1) / k)] if k > 1 else [(i, 1.0)]
        self._known: dict[tuple[HostCost, float], list[float]] = {}

    def after_s(self, each_s: Sequence[float]) -> list[float]:
        """Of each kernel that counts: what it and all after it take."""
        return list(accumulate([each_s[i] * share for i, share in self._counted]))

    def launched_s(self, cost: HostCost, gap_s: float) -> list[float]:
        """Of each kernel that counts: when it is launched, and the device's pauses from then on."""
        found = self._known.get((cost, gap_s))
        if found is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            found, after = [], 0.0
            at_s = cost.of_all(self)
            for name, k in zip(reversed(self.names), reversed(self.kernels)):
                launch_s = cost.of_one(name, k)
                if k > 1:
                    found.append(at_s + gap_s * (after + 1))
                at_s, after = at_s - launch_s, after + k
                found.append(at_s + launch_s / k + gap_s * after)
            self._known[cost, gap_s] = found
        return found


class LaunchBlock:
    """`repeat` times the same operators, and the seconds that each takes with all its kernels."""

    __slots__ = ("_after", "each_s", "launches", "repeat", "seconds")

    def __init__(self, repeat: float, launches: RoleLaunches, each_s: Sequence[float]) -> None:
        self.repeat, self.launches, self.each_s, self.seconds = repeat, launches, each_s, sum(each_s)
        self._after: list[float] | None = None

    def as_one(self, name: str) -> LaunchBlock:
        """All of it in one launch."""
        return LaunchBlock(self.repeat, RoleLaunches((name,), (self.launches.kernel_count,)), (self.seconds,))

    def behind_s(self, cost: HostCost, gap_s: float, scale: float) -> float:
        """The longest way through a layer that begins with a launch."""
        if self._after is None:
            self._after = self.launches.after_s(self.each_s)
        after = self._after if scale == 1.0 else [scale * s for s in self._after]
        longest: float = max(map(add, self.launches.launched_s(cost, gap_s), after))
        return longest


class HostCost(NamedTuple):
    """What the host takes to launch an operator by itself: for the call, for each of its kernels, and what it does
    before a layer's experts."""

    call_s: float
    kernel_s: float
    experts_s: float = 0.0

    def of_one(self, name: str, kernels: float) -> float:
        return self.call_s + self.kernel_s * kernels + (self.experts_s if name == EXPERTS else 0.0)

    def of_all(self, launches: RoleLaunches) -> float:
        own_s = self.call_s * len(launches.kernels) + self.kernel_s * launches.kernel_count
        return own_s + self.experts_s * launches.expert_count


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

    def layers(self, blocks: Sequence[LaunchBlock], cost: HostCost) -> None:
        """Blocks of layers. One layer advances the host by h and the device by d, or, if the device has to wait, to
        where the host was plus `behind`: the longest way through the layer that begins with a launch. So after n layers
        the device is at the latest of: never having waited; having waited for the first layer's launches, or the
        last's, n - 1 layers of the slower queue later or before.
        """
        scale, gap_s = self.scale, self.gap_s
        at_host_s, at_device_s, worked_s = self.host_s, self.device_s, self.worked_s
        for block in blocks:
            repeat, launches = block.repeat, block.launches
            kernels = launches.kernel_count
            host_s, device_s = cost.of_all(launches), block.seconds * scale + gap_s * kernels
            slower_s = (repeat - 1) * (host_s if host_s > device_s else device_s)
            at_device_s += repeat * device_s
            if at_device_s < at_host_s + host_s + device_s + slower_s:  # else no way through the layer is that long
                waited_s = at_host_s + block.behind_s(cost, gap_s, scale) + slower_s
                at_device_s = waited_s if waited_s > at_device_s else at_device_s
            at_host_s += repeat * host_s
            worked_s += repeat * device_s
        self.host_s, self.device_s, self.worked_s = at_host_s, at_device_s, worked_s

    def read(self) -> None:
        """The host waits for what the device computes."""
        self.host_s = max(self.host_s, self.device_s)

    def skip(self, steps: float, host_s: float, device_s: float) -> None:
        """So many more steps like the one before, each of so much of either queue."""
        ahead = max(host_s, device_s) * steps
        self.device_s += ahead
        self.host_s += steps * host_s
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

    def layers(self, blocks: Sequence[LaunchBlock], cost: HostCost) -> None:
        for block in blocks:
            launches = block.launches
            for _ in range(round(block.repeat)):
                for name, kernels, seconds in zip(launches.names, launches.kernels, block.each_s):
                    one = cost.of_one(name, kernels) / kernels
                    ran = (seconds * self.scale + self.gap_s * kernels) / kernels
                    for _ in range(max(1, round(kernels))):
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
