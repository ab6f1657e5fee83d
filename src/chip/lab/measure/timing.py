"""Turning calls into `take() -> nanoseconds of one call` for the timer: by device events, by graph replay, by host.

`calls` are closures over rotated buffer sets: one closure measures hot, `cold_copies` of them measure cold.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import torch

from chip.lab.measure.device import Device
from chip.lab.measure.stopping import Take

Call = Callable[[], object]
SPIN_LIMIT_S = 0.05
IN_FLIGHT = 3  # runs enqueued ahead of an unbroken load
REST_SHARE, LONGEST_REST_S = 5.0, 0.03  # of the work before it
COLD_FACTOR = 4  # times the L2 cache


def cold_copies(device: Device, bytes_per_set: float) -> int:
    """How many buffer sets, used in turn, so that none is still in cache when its turn comes again.

    Small sets need many: cut them out of one big allocation.
    """
    return int(COLD_FACTOR * device.l2_bytes // max(1, int(bytes_per_set))) + 1


def events(device: Device, calls: Sequence[Call], inner: int = 1) -> Take:
    """`inner` calls between two events. A spin kernel goes first, so that no launch is timed."""
    rotation = itertools.cycle(calls)
    if device.kind == "cpu":
        return _cpu(rotation, inner)
    enqueue_s, run_s = _enqueue_and_run_s(device, rotation, min(inner, 50))
    # where the device is the slower of the two, one call's head start is enough for the queue never to run dry
    ahead = 1 if run_s > 2 * enqueue_s else inner
    cycles = spin_cycles(device, enqueue_s * ahead)

    def run() -> None:
        for _ in range(inner):
            next(rotation)()

    return _between_events(device, run, inner, cycles)


def graph(device: Device, calls: Sequence[Call], inner: int = 1) -> Take:
    """`inner` calls captured in one graph, replayed between two events: no launch cost inside."""
    rotation = itertools.cycle(calls)
    if device.kind == "cpu":
        return _cpu(rotation, inner)
    return replayed(device, capture(device, calls, inner).replay, inner)


def replayed(device: Device, replay: Call, inner: int = 1, before: Call | None = None) -> Take:
    """The replay of a graph of `inner` calls between two events; what `before` enqueues is not timed."""
    again = replay if before is None else lambda: (before(), replay())
    launch_s, _ = _enqueue_and_run_s(device, itertools.repeat(again), 1)
    return _between_events(device, replay, inner, spin_cycles(device, launch_s), before)


def capture(device: Device, calls: Sequence[Call], inner: int, before: Call = lambda: None) -> torch.cuda.CUDAGraph:
    """A graph of `inner` calls in turn; each call is warmed up on a side stream first, as capture demands. `before`
    is called ahead of each of these and of the capture, and is no part of it."""
    with torch.cuda.device(device.torch_device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for call in itertools.islice(itertools.cycle(calls), min(max(3, len(calls)), 64)):
                before()
                call()
            before()
        torch.cuda.current_stream().wait_stream(side)
        device.synchronize()
        captured = torch.cuda.CUDAGraph()
        rotation = itertools.cycle(calls)
        with torch.cuda.graph(captured):
            for _ in range(inner):
                next(rotation)()
    return captured


def host(device: Device, call: Call) -> Take:
    """What the host waits for: call and synchronise, by the host's clock."""

    def take() -> int:
        start = time.perf_counter_ns()
        call()
        device.synchronize()
        return time.perf_counter_ns() - start

    return take


def enqueue(device: Device, call: Call, inner: int) -> Take:
    """What the host pays to hand over one call: `inner` of them into an empty queue, not waiting for the device."""

    def take() -> int:
        device.synchronize()
        start = time.perf_counter_ns()
        for _ in range(inner):
            call()
        elapsed = time.perf_counter_ns() - start
        device.synchronize()
        return round(elapsed / inner)

    return take


def inner_for(device: Device, calls: Sequence[Call], target_s: float = 1e-3, limit: int = 2000) -> int:
    """How many calls make a sample of about `target_s`."""
    rotation = itertools.cycle(calls)
    _, run_s = _enqueue_and_run_s(device, rotation, 1)
    if run_s > target_s:
        return 1
    _, run_s = _enqueue_and_run_s(device, rotation, 4)
    return max(1, min(limit, round(target_s / max(run_s, 1e-7))))


def unbroken(device: Device, run: Callable[[], object], calls: int) -> Take:
    """The same work without a pause: a few runs are always enqueued ahead, so that the device never waits for the host
    and settles at the clock its power limit allows. A take is the device time from one run's end to the next's, over
    the `calls` of a run."""
    if device.kind == "cpu":
        whole = _cpu(itertools.repeat(run), 1)
        return lambda: round(whole() / calls)
    marks: deque[torch.cuda.Event] = deque()

    def take() -> int:
        while len(marks) <= IN_FLIGHT:
            if marks:
                run()
            mark = torch.cuda.Event(enable_timing=True)
            mark.record()
            marks.append(mark)
        marks[1].synchronize()
        first = marks.popleft()
        return round(float(first.elapsed_time(marks[0])) * 1e6 / calls)

    return take


def rest(busy_s: float) -> None:
    """Long enough after so much work that a GPU stays at its boost clock."""
    time.sleep(min(LONGEST_REST_S, REST_SHARE * busy_s))


def rested(device: Device, take: Take, inner: int) -> Take:
    """The same with a rest after each sample."""
    if device.kind == "cpu":
        return take

    def sample() -> int:
        ns = take()
        rest(ns * inner * 1e-9)
        return ns

    return sample


def warm_up(device: Device, call: Call, seconds: float) -> None:
    """Keep the device busy with the call for a while: clocks, caches, lazily loaded code."""
    end = time.monotonic() + seconds
    while True:
        call()
        device.synchronize()
        if time.monotonic() >= end:
            return


def _cpu(rotation: Iterator[Call], inner: int) -> Take:
    def take() -> int:
        start = time.perf_counter_ns()
        for _ in range(inner):
            next(rotation)()
        return round((time.perf_counter_ns() - start) / inner)

    return take


def _between_events(
    device: Device, run: Callable[[], object], inner: int, spin_cycles: int, before: Call | None = None
) -> Take:
    with torch.cuda.device(device.torch_device):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def take() -> int:
        with torch.cuda.device(device.torch_device):
            if before is not None:
                before()
            if spin_cycles:
                torch.cuda._sleep(spin_cycles)  # the queue fills while the device waits here
            start.record()
            run()
            end.record()
            end.synchronize()
        return round(float(start.elapsed_time(end)) * 1e6 / inner)

    return take


def _enqueue_and_run_s(device: Device, rotation: Iterator[Call], count: int) -> tuple[float, float]:
    """Host seconds to enqueue one call, and seconds until it has run, after one call to warm up."""
    next(rotation)()
    device.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        next(rotation)()
    enqueued = time.perf_counter()
    device.synchronize()
    return (enqueued - start) / count, (time.perf_counter() - start) / count


def spin_cycles(device: Device, seconds: float) -> int:
    """For `torch.cuda._sleep`: long enough to enqueue meanwhile what takes the host so many seconds."""
    return int(min(SPIN_LIMIT_S, 1.5 * seconds + 50e-6) * (device.boost_hz or 2e9))
