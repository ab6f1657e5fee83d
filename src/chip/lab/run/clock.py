"""Timing whole requests: each step by the host's clock, from one synchronisation to the next, as a user waits.

Between them the launch latency of the host is taken, the time to launch one small kernel. On a host that is shared, or
that lowers its clock, it can double from one minute to the next, and whatever waits for the host then takes twice as
long. The file of runs records it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import FrameType
from typing import NoReturn

import torch

from chip.lab.measure import disturbance
from chip.lab.measure.device import Device
from chip.lab.run.steps import Steps
from chip.stats import median
from chip.types import ChipError

WARM_S = 0.3  # of load before anything counts: clocks, caches, lazily loaded code
WARM_PREFILLS = 2
LONG_S = 1.0  # a prefill that takes longer is warm after one
WARM_DECODES = 2  # few, so that the first repeat still meets KV lengths that were never seen
LEAST_REPEATS = 2
LAUNCHES, BATCHES = 200, 3  # 5 ms: nothing beside a repeat
UNDISTURBED = 4  # decode steps after which no prompt can tell whether the device rested a moment before it
ALONE_S, PAUSE_S = 20.0, 0.25  # of a host that is measured by itself
MOST_CHANGE = 1.5  # a larger ratio of launch latencies during one point is flagged


@dataclass
class RunSamples:
    """Repeats in order: what `Run` holds under the same names."""

    ttft_ns: list[int] = field(default_factory=list)
    step_ns: list[tuple[int, ...]] = field(default_factory=list)
    e2e_ns: list[int] = field(default_factory=list)
    launch_ns: list[float] = field(default_factory=list)
    flags: tuple[str, ...] = ()


def warm_up(device: Device, steps: Steps, output: int) -> None:
    began, done, spent = time.monotonic(), 0, 0.0
    least_s = WARM_S if device.kind == "cuda" else 0.0
    while (done < WARM_PREFILLS or spent < least_s) and spent < LONG_S:
        steps.rewind()
        steps.prefill()
        for _ in range(min(WARM_DECODES, output - 1)):
            steps.decode()
        device.synchronize()
        done, spent = done + 1, time.monotonic() - began


def request(device: Device, steps: Steps, output: int) -> tuple[int, tuple[int, ...], int]:
    """Nanoseconds to the first token, of each decode step, and of all: they add up exactly."""
    steps.rewind()
    device.synchronize()
    marks = [time.perf_counter_ns()]
    steps.prefill()
    device.synchronize()
    marks.append(time.perf_counter_ns())
    for _ in range(output - 1):
        steps.decode()
        device.synchronize()
        marks.append(time.perf_counter_ns())
    spans = [b - a for a, b in pairwise(marks)]
    return spans[0], tuple(spans[1:]), marks[-1] - marks[0]


def repeated(device: Device, steps: Steps, output: int, repeats: int, max_seconds: float) -> RunSamples:
    """`repeats` requests, or as many as `max_seconds` allows, but never fewer than two; with the launch
    latency between them."""
    samples, began = RunSamples(launch_ns=[launch_ns(device)]), time.monotonic()
    before = disturbance.read()
    for done in range(repeats):
        spent = time.monotonic() - began
        if done >= LEAST_REPEATS and spent + spent / done > max_seconds:
            samples.flags = (f"{done} of {repeats} repeats in {max_seconds:g} s (--max-seconds)",)
            break
        ttft, each, whole = request(device, steps, output)
        samples.ttft_ns.append(ttft)
        samples.step_ns.append(each)
        samples.e2e_ns.append(whole)
        if output > UNDISTURBED:
            samples.launch_ns.append(launch_ns(device))
    if output <= UNDISTURBED:
        samples.launch_ns.append(launch_ns(device))
    samples.flags += disturbance.flags(before, disturbance.read(), samples.e2e_ns)
    return samples


def launch_ns(device: Device) -> float:
    """Median over batches; a batch is short enough never to fill the device's queue."""
    x = torch.ones(64, device=device.torch_device)
    batches = []
    for _ in range(BATCHES):
        device.synchronize()
        began = time.perf_counter_ns()
        for _ in range(LAUNCHES):
            x = x * 1.0
        batches.append((time.perf_counter_ns() - began) / LAUNCHES)
    device.synchronize()
    return round(median(batches), 1)


def samples_ns(device: Device, seconds: float = ALONE_S) -> list[float]:
    """For so long, four looks a second: a host changes from second to second."""
    latencies, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        latencies.append(launch_ns(device))
        time.sleep(PAUSE_S)
    return latencies


def latency_flags(latencies_ns: Sequence[float]) -> tuple[str, ...]:
    if not latencies_ns or max(latencies_ns) <= MOST_CHANGE * min(latencies_ns):
        return ()
    least, most = min(latencies_ns) * 1e-3, max(latencies_ns) * 1e-3
    return (f"the launch latency changed: from {least:.2g} to {most:.2g} us",)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """A ChipError after so long. Only a main thread can be interrupted so, and only between two of its calls."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(signum: int, frame: FrameType | None) -> NoReturn:
        raise ChipError(f"took longer than {seconds:g} s; give it more with --timeout, or less to do")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
