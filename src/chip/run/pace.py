"""The pace of the host while a point is timed: what it takes to launch one small kernel, before each repeat and
after the last.

A host that is shared, or that lowers its clock, launches at half its pace from one minute to the next, and whatever
waits for it takes twice as long. The file of runs then tells so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from chip import stats
from chip.measure.device import Device

LAUNCHES, BATCHES = 200, 3  # 5 ms: nothing beside a repeat
UNDISTURBED = 4  # decode steps after which no prompt can tell whether the device rested a moment before it
APART = 1.5  # paces that differ by more are said


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


def flags(paces_ns: Sequence[float]) -> tuple[str, ...]:
    if not paces_ns or max(paces_ns) <= APART * min(paces_ns):
        return ()
    least, most = min(paces_ns) * 1e-3, max(paces_ns) * 1e-3
    return (f"the host changed its pace: a launch took {least:.2g} to {most:.2g} us",)
