"""The pace of the host while a point is timed: what it takes to launch one small kernel, before and after.

A host that is shared, or that lowers its clock, launches at half its pace from one minute to the next, and whatever
waits for it takes twice as long. The file of runs then tells so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from chip import stats
from chip.measure.device import Device

LAUNCHES, BATCHES = 200, 9
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
    first, last = paces_ns[0] * 1e-3, paces_ns[-1] * 1e-3
    return (f"the host changed its pace: a launch took {first:.2g} us before and {last:.2g} us after",)
