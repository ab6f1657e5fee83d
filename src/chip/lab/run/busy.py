"""How long the device worked in a step, and what it waited for when it did not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from chip.lab.measure.device import Device
from chip.lab.measure.kineto import ProfilerUse
from chip.lab.measure.timing import Call, spin_cycles
from chip.lab.run.clock import WARM_DECODES, RunSamples
from chip.lab.run.steps import Graph, Steps
from chip.stats import median

IDLE_OVER = 0.05  # of a step: less is not worth a reason
FIRST_OVER = 1.2  # a first visit slower than later ones by this much is a cost of its own
LOOKS = 6  # decode steps looked at; any cache has room for them


@dataclass(frozen=True)
class Look:
    """One step, seen from the device and from the host."""

    device_s: float  # kernels and copies, overlaps counted once; of a graph: its first kernel to its last
    host_s: float  # until the call returned, the device not waited for
    launches: int  # 0 where a graph is launched as one
    names: tuple[str, ...] = ()


def by_events(steps: Steps) -> bool:
    """Whether no profiler is needed to see them: nothing in a graph waits for the host."""
    return isinstance(steps, Graph)


def look(device: Device, steps: Steps, output: int) -> dict[str, Look]:
    """Prefill and decode, by events where they tell, else as the profiler sees them."""
    if device.kind != "cuda":
        return {}
    see = _by_events if by_events(steps) else _by_profiler
    looks = {"prefill": see(device, steps.rewind, steps.prefill, 2)}
    if output > 1:
        steps.rewind()
        steps.prefill()
        looks["decode"] = see(device, lambda: None, steps.decode, LOOKS)
    return {phase: seen for phase, seen in looks.items() if seen}


def _by_events(device: Device, ready: Call, step: Call, count: int) -> Look:
    """The device first spins while the host launches, so that the launch is not in the span."""
    spans: list[float] = []
    hosts: list[float] = []
    for _ in range(count):
        ready()
        device.synchronize()
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(spin_cycles(device, max(hosts, default=1e-3)))
        first.record()
        began = time.perf_counter()
        step()
        hosts.append(time.perf_counter() - began)
        last.record()
        last.synchronize()
        spans.append(first.elapsed_time(last) * 1e-3)
    return Look(median(spans), median(hosts), 0)


def _by_profiler(device: Device, ready: Call, step: Call, count: int) -> Look | None:
    """None where the driver lets nobody profile."""
    from torch.profiler import ProfilerActivity, profile

    def run() -> float:
        ready()
        device.synchronize()
        began = time.perf_counter()
        step()
        returned = time.perf_counter()
        device.synchronize()
        return returned - began

    ProfilerUse.before = True
    profiled = max(1, count // 2)
    hosts = [run() for _ in range(count - profiled)]
    with profile(activities=[ProfilerActivity.CUDA]) as p:
        for _ in range(profiled):
            run()
    events = [e for e in p.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    if not events:
        return None
    spans = [(e.time_range.start * 1e-6, e.time_range.end * 1e-6) for e in events]
    names = tuple(dict.fromkeys(e.name for e in events))
    return Look(union(spans) / profiled, median(hosts), round(len(events) / profiled), names)


def union(spans: Sequence[tuple[float, float]]) -> float:
    """Total length covered by intervals that may overlap."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def shares(looks: dict[str, Look], samples: RunSamples) -> dict[str, float]:
    """Share of each step that the device worked; decode at KV lengths that were seen before."""
    walls = {"prefill": median(samples.ttft_ns) * 1e-9, "decode": settled_step_s(samples)}
    return {phase: min(1.0, seen.device_s / walls[phase]) for phase, seen in looks.items()}


def settled_step_s(samples: RunSamples) -> float:
    """Median decode step, the first repeat left out where there are others: its KV lengths were new."""
    later = [ns for each in samples.step_ns[1:] or samples.step_ns for ns in each]
    return median(later) * 1e-9 if later else 0.0


def new_length_s(samples: RunSamples) -> float:
    """What a decode step costs more the first time its KV length is met; 0 where that shows no difference."""
    if len(samples.step_ns) < 2 or len(samples.step_ns[0]) <= WARM_DECODES:
        return 0.0
    first = median(samples.step_ns[0][WARM_DECODES:]) * 1e-9
    later = settled_step_s(samples)
    return first - later if first > FIRST_OVER * later else 0.0


def waits(looks: dict[str, Look], samples: RunSamples) -> tuple[str, ...]:
    """What the device waited for, one phrase each, the largest first."""
    reasons: list[tuple[float, str]] = []
    if "decode" in looks and (extra := new_length_s(samples)):
        reasons.append((extra, _new_length(extra, settled_step_s(samples), looks["decode"].names)))
    walls = {"prefill": median(samples.ttft_ns) * 1e-9, "decode": settled_step_s(samples)}
    for phase, seen in looks.items():
        idle = walls[phase] - seen.device_s
        if idle > IDLE_OVER * walls[phase]:
            reasons.append((idle, f"{phase}: {_host(seen, walls[phase], idle)}"))
    return tuple(text for _, text in sorted(reasons, reverse=True))


def _new_length(extra: float, later: float, names: tuple[str, ...]) -> str:
    cudnn = any("cudnn" in n.lower() for n in names)
    what = "cuDNN builds an attention plan for each new KV length" if cudnn else "each new KV length costs more"
    cure = "; --sdpa flash does not" if cudnn else ""
    return (
        f"decode: {what}: a step takes {(extra + later) * 1e3:.3g} ms the first time, "
        f"{later * 1e3:.3g} ms when the length was seen before{cure}"
    )


def _host(seen: Look, wall_s: float, idle_s: float) -> str:
    if not seen.launches:
        return f"launch and synchronisation of the graph, {idle_s * 1e6:.0f} us"
    if seen.host_s > (1 - 2 * IDLE_OVER) * wall_s:
        each = seen.host_s / seen.launches * 1e6
        return f"host dispatch, {seen.launches} launches at {each:.3g} us ({seen.device_s * 1e3:.3g} ms of kernels)"
    done = f"the host was done after {seen.host_s * 1e3:.3g} of {wall_s * 1e3:.3g} ms"
    return f"gaps between {seen.launches} kernels, {idle_s * 1e3:.3g} ms in all; {done}"
