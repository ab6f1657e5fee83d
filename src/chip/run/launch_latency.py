"""Launch latency of the host while a point is timed: the time to launch one small kernel, before each repeat and after
the last.

On a host that is shared, or that lowers its clock, it can double from one minute to the next, and whatever waits for
the host then takes twice as long. The file of runs records it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from chip import stats
from chip.measure.device import Device

LAUNCHES, BATCHES = 200, 3  # 5 ms: nothing beside a repeat
UNDISTURBED = 4  # decode steps after which no prompt can tell whether the device rested a moment before it
ALONE_S, PAUSE_S = 20.0, 0.25  # of a host that is measured by itself
MOST_CHANGE = 1.5  # a larger ratio of launch latencies during one point is flagged


def launch_ns(device: Device) -> float:
    """Median over batches; a batch is short enough never to fill the device's queue."""
    x = torch.ones(64, device=device.torch_device)
    found = []
    for _ in range(BATCHES):
        device.synchronize()
        began = time.perf_counter_ns()
        for _ in range(LAUNCHES):
            x = x * 1.0
        found.append((time.perf_counter_ns() - began) / LAUNCHES)
    device.synchronize()
    return round(stats.median(found), 1)


def samples_ns(device: Device, seconds: float = ALONE_S) -> list[float]:
    """For so long, four looks a second: a host changes from second to second."""
    found, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        found.append(launch_ns(device))
        time.sleep(PAUSE_S)
    return found


def flags(latencies_ns: Sequence[float]) -> tuple[str, ...]:
    if not latencies_ns or max(latencies_ns) <= MOST_CHANGE * min(latencies_ns):
        return ()
    least, most = min(latencies_ns) * 1e-3, max(latencies_ns) * 1e-3
    return (f"the launch latency changed: from {least:.2g} to {most:.2g} us",)
