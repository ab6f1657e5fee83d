"""Recording one step of a model: its operators, the kernels they launch, and the time of the whole.

The step is handed in as a callable. Three looks at it, because none sees everything:
1. operators, as they are dispatched (`recorder`): shapes, strides, scalars, ranges of integers;
2. the profiler around the same dispatch, each call annotated: which kernel belongs to which call;
3. the profiler around the step as it really runs, be it a CUDA graph or eager: what is kept as the trace.
Kernels of 3 get their owners from 2 by their order. On a CPU an operator stands for its kernels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.profiler import record_function

from chip import stats
from chip.files.traces import Flow, KernelEvent, Timing, Trace
from chip.lab.measure import disturbance, timing
from chip.lab.measure.device import Device, reason_of
from chip.lab.measure.energy import NotAvailable, idle_watts, joules_above, probe_for
from chip.lab.measure.kineto import PASS, Looked, ProfilerUse, passes, profiled
from chip.lab.measure.recorder import Dispatched, Recorder
from chip.lab.measure.stopping import Samples, StopRule, collect
from chip.lab.replay import owners
from chip.lab.replay.chrome import DeviceEvent
from chip.types import ChipError

CALL = "chip.call#"  # annotation around each operator
WARM_CALLS = 3
RULE = StopRule(0.003, 20, 200, 1.5)
WARM_S = 0.3
NO_GRID = (0, 0, 0)
PASSES = 7  # profiled runs: medians over them are kept


@dataclass(frozen=True)
class CaptureSubject:
    """What is recorded. `run` is the step and can be called again and again; `prepare` is called before, untimed."""

    run: Callable[[], object]
    prepare: Callable[[], object] = lambda: None
    graph: bool = False  # the step is run as a CUDA graph


@dataclass(frozen=True)
class CaptureSettings:
    chrome: Path | None = None  # where the profiler's own trace of the kept run goes
    energy_s: float = 0.0  # of repeating the step for its joules


def capture(subject: CaptureSubject, device: Device, blank: Trace, settings: CaptureSettings | None = None) -> Trace:
    """`blank` names what is recorded; it is returned with operators, kernels, events and timings. These are flagged
    where another process used the machine meanwhile."""
    before = disturbance.read()
    trace = _captured(subject, device, blank, settings or CaptureSettings())
    flags = disturbance.flags(before, disturbance.read())
    return replace(trace, timings={n: replace(t, flags=(*t.flags, *flags)) for n, t in trace.timings.items()})


def _captured(subject: CaptureSubject, device: Device, blank: Trace, chosen: CaptureSettings) -> Trace:
    for _ in range(WARM_CALLS):
        subject.prepare()
        subject.run()
    device.synchronize()
    with as_if_capturing() if subject.graph else nullcontext():
        if device.kind == "cpu":
            return _operator_level(subject, device, blank, chosen)
        recorder = _record(subject, device)
    # all times come first: a process that has used the profiler launches more slowly ever after
    missing = {"times": ProfilerUse.FLAG} if ProfilerUse.before else {}
    timings = {"eager": _eager(subject, device)}
    captured = _graph(subject, device, missing)
    if captured is not None:
        timings["graph"] = graph_timing(captured.replay, subject.prepare, device)
    elif subject.graph:
        raise ChipError(f"the step cannot be captured as a CUDA graph: {missing['graph']}")
    run = captured.replay if subject.graph and captured is not None else subject.run
    kind = "graph" if subject.graph else "eager"
    timings[kind] = _with_joules(timings[kind], run, subject.prepare, device, chosen.energy_s)
    with as_if_capturing() if subject.graph else nullcontext():
        known = [(e.name, call) for e, call in _annotated(subject, device)]
    launches = _merged(passes([Looked(run, PASSES, subject.prepare)], device, chosen.chrome)[0])
    calls = owners.aligned([e.name for e in launches], known)
    if (lost := calls.count(-1)) > sum(call == -1 for _, call in known):
        missing["owners"] = f"{lost} of {len(launches)} kernels ran in another order than when operators were recorded"
    operators = dict(enumerate(recorder.calls))
    table, kernels, events = owners.assemble(launches, calls, operators)
    return replace(
        blank,
        source=kind,
        operators=table,
        kernels=kernels,
        events=events,
        timings=timings,
        missing={**blank.missing, **missing},
        l2_bytes=device.l2_bytes,
        flow=_flow(recorder, events),
    )


@contextmanager
def as_if_capturing() -> Iterator[None]:
    """A step that asks whether its stream is being captured is told so: transformers builds other masks then, and its
    attention gets other arguments. Recorded without, the operators would not be those of the graph."""
    with mock.patch.object(torch.cuda, "is_current_stream_capturing", return_value=True):
        yield


def _record(subject: CaptureSubject, device: Device) -> Recorder:
    recorder = Recorder(device)
    subject.prepare()
    with recorder.mode():
        subject.run()
    device.synchronize()
    return recorder


def _annotated(subject: CaptureSubject, device: Device) -> list[tuple[DeviceEvent, int]]:
    def call(number: int, func: Any, args: Any, kwargs: Any) -> Any:
        with record_function(f"{CALL}{number}"):
            return func(*args, **kwargs)

    def work() -> None:
        subject.prepare()
        subject.run()  # wakes the profiler
        subject.prepare()
        device.synchronize()
        with record_function(f"{PASS}0"), Dispatched(call, device):
            subject.run()
            device.synchronize()

    profile = profiled(work)
    within = {id(e) for e in owners.during(profile, PASS)[0]}
    return [(e, number) for e, number in owners.marked(profile, CALL) if id(e) in within]


def _flow(recorder: Recorder, events: Sequence[KernelEvent]) -> tuple[Flow, ...]:
    """What the calls that launched kernels read and made."""
    launched = {e.call for e in events}
    return tuple(flow for flow in recorder.flow if flow.call in launched)


def _merged(runs: Sequence[list[DeviceEvent]]) -> list[DeviceEvent]:
    """Medians of start and duration over all passes; where passes differ, the one with the median sum of kernels."""
    if len({tuple(e.name for e in events) for events in runs}) > 1:
        return sorted(runs, key=lambda events: sum(e.duration_ns for e in events))[len(runs) // 2]
    merged = []
    for launches in zip(*runs):
        start = stats.median([e.start_ns - events[0].start_ns for e, events in zip(launches, runs)])
        took = stats.median([e.duration_ns for e in launches])
        merged.append(launches[0]._replace(start_ns=round(start), duration_ns=round(took)))
    return merged


def _operator_level(subject: CaptureSubject, device: Device, blank: Trace, settings: CaptureSettings) -> Trace:
    """A CPU: each operator that touches memory is one event, by the host's clock."""
    recorder = _record(subject, device)
    touching = [i for i in range(len(recorder.calls)) if i not in recorder.views]
    runs = []
    for _ in range(PASSES):
        times = _timed_calls(subject, device)
        if len(times) != len(recorder.calls):
            raise ChipError("the step calls other operators each time it runs: it cannot be recorded")
        names = {i: f"{recorder.calls[i].name}.{recorder.calls[i].overload}" for i in touching}
        runs.append([DeviceEvent(n, "operator", *times[i], 0, NO_GRID, NO_GRID, 0, i) for i, n in names.items()])
    merged = _merged(runs)
    timed = _with_joules(_eager(subject, device), subject.run, subject.prepare, device, settings.energy_s)
    table, kernels, events = owners.assemble(merged, [e.correlation for e in merged], dict(enumerate(recorder.calls)))
    return replace(
        blank,
        source="operators",
        operators=table,
        kernels=kernels,
        events=events,
        timings={"eager": timed},
        missing={**blank.missing, "graph": "a CPU has no CUDA graphs"},
        l2_bytes=device.l2_bytes,
        flow=_flow(recorder, events),
    )


def _timed_calls(subject: CaptureSubject, device: Device) -> list[tuple[int, int]]:
    """Start and duration of each call, by the host's clock."""
    times: list[tuple[int, int]] = []

    def call(number: int, func: Any, args: Any, kwargs: Any) -> Any:
        start = time.perf_counter_ns()
        out = func(*args, **kwargs)
        times.append((start, time.perf_counter_ns() - start))
        return out

    subject.prepare()
    with Dispatched(call, device):
        subject.run()
    return times


def _eager(subject: CaptureSubject, device: Device) -> Timing:
    """The step as the host sees it: until the device has done it."""
    host = timing.host(device, subject.run)

    def take() -> int:
        subject.prepare()
        device.synchronize()
        return host()

    return timed(take, device, "host clock around the step and a synchronisation")


def graph_timing(replay: Callable[[], object], prepare: Callable[[], object], device: Device) -> Timing:
    return timed(timing.replayed(device, replay, 1, prepare), device, "events around the replay of a CUDA graph")


def timed(take: Callable[[], int], device: Device, method: str) -> Timing:
    """After a while of it, so that clock and power are those of the step run again and again."""
    end = time.monotonic() + WARM_S
    while time.monotonic() < end:
        take()
    samples: Samples = collect(take, RULE, device)
    samples.require_time("step")
    now = device.sensors()
    return Timing(samples.samples_ns, method, samples.clock_hz, now.watts, now.celsius, None, samples.flags)


def _with_joules(
    timed: Timing, run: Callable[[], object], prepare: Callable[[], object], device: Device, seconds: float
) -> Timing:
    """With the joules of one step, idle power subtracted, from repeating it for so many seconds."""
    if not seconds:
        return timed

    def work() -> None:
        prepare()
        run()
        device.synchronize()

    probe = probe_for(device)
    joules = joules_above(probe, work, seconds, idle_watts(probe))
    if isinstance(joules, NotAvailable):
        return replace(timed, flags=(*timed.flags, f"no energy: {joules.reason}"))
    return replace(timed, joules=joules)


def _graph(subject: CaptureSubject, device: Device, missing: dict[str, str]) -> torch.cuda.CUDAGraph | None:
    try:
        return timing.capture(device, [subject.run], 1, subject.prepare)
    except Exception as e:  # whatever a step does that a capture forbids
        missing["graph"] = reason_of(e)
        device.synchronize()
        return None
