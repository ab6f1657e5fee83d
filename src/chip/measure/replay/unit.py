"""Units run alone and timed: calls rotate over buffers, in a CUDA graph, under the same profiler as the capture.

A kernel's duration comes from the profiler, as in the capture. Events around the same graph without the profiler tell
how long all of it takes; what that has above the kernels' durations, over their number, is the gap between two of them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import ParamSpec, TypeVar

import torch

from chip import stats
from chip.measure import timing
from chip.measure.device import Device
from chip.measure.kineto import Looked, passes
from chip.measure.profile import reason_of
from chip.measure.replay import direct
from chip.measure.replay.arguments import rotating
from chip.measure.replay.joules import with_joules
from chip.measure.stopping import StopRule, collect, collect_interleaved
from chip.replay.chrome import DeviceEvent
from chip.replay.results import NO_GRAPH, Replayed
from chip.replay.rotation import COLD_FACTOR, Rotation, rotation
from chip.replay.signatures import Unit
from chip.replay.tiers import plain
from chip.types import ChipError

ROUND_S = 2e-3  # a round is as many calls as take about this long
LEAST_CALLS, MOST_CALLS = 8, 128
GAP_RULE = StopRule(0.01, 5, 10, 0.05)
BURST_RULE = StopRule(0.003, 8, 30, 0.15)
LOAD_RULE = StopRule(0.003, 10, 60, 0.15)
SETTLE_S = 0.2  # until clock and power have settled, and the driver's reading of the clock with them
HEAVY = 0.01  # share of the step from which a unit rests and is run under unbroken load too; less moves no clock
METHODS = {1: "CUDA runtime called directly", 2: "cuBLAS called directly", 3: "{} called again"}
Call = Callable[[], object]
P = ParamSpec("P")
T = TypeVar("T")
Launches = list[list[DeviceEvent]]  # of each kernel of a call
Looks = Sequence[Sequence[DeviceEvent]]  # all kernels of a round, round by round


@dataclass(frozen=True)
class ReplaySettings:
    rule: str = "producer"
    warmup: int = 10  # calls of a round that are not counted
    runs: int = 100  # samples of each kernel
    energy_s: float = 0.0  # of repeating a unit for its joules
    load: bool = True  # look at unbroken load too: not where the model ran at the full clock


@dataclass(frozen=True)
class _Round:
    """Calls in turn. Each writes what its producer would have written, then runs the kernels of interest."""

    calls: list[Call]  # which hold their buffers: a graph of them does not
    plan: Rotation
    flush: Call | None

    def before(self) -> None:
        if self.flush is not None:
            self.flush()


@dataclass(frozen=True)
class _Periods:
    """What one call of a round takes, unprofiled: in short bursts and under unbroken load, each with its clock."""

    burst_ns: float
    burst_hz: float | None
    load_ns: float
    load_hz: float | None
    gap_ns: float  # of each of its kernels

    def added_to(self, kernel: Replayed, share: float) -> Replayed:
        """`share`: the kernel's part of the call's time, and so of what the clock changes."""
        return replace(
            kernel,
            gap_ns=self.gap_ns,
            load_ns=(self.load_ns - self.burst_ns) * share,
            burst_hz=self.burst_hz,
            load_hz=self.load_hz,
        )


def replay_units(units: Sequence[Unit], device: Device, settings: ReplaySettings) -> list[list[Replayed] | str]:
    """The members of each unit, timed, or why not. One session of the profiler looks at all: it takes longer to start
    than most units run."""
    gc.collect()
    device.empty_cache()  # what others left
    with torch.inference_mode():
        benches = [_attempt(_UnitBench, unit, device, settings) for unit in units]
        if device.kind == "cpu":
            return [b if isinstance(b, str) else _attempt(b.on_cpu) for b in benches]
        looks = [[] if isinstance(b, str) else b.looks for b in benches]
        seen = iter(passes([look for mine in looks for look in mine], device) if any(looks) else [])
        looked = [[next(seen) for _ in mine] for mine in looks]
        return [b if isinstance(b, str) else _attempt(b.on_gpu, mine) for b, mine in zip(benches, looked)]


def _attempt(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | str:
    """What it gives, or why it failed: out of memory, an operator that refuses."""
    try:
        return work(*args, **kwargs)
    except Exception as e:
        return str(e) if isinstance(e, ChipError) else reason_of(e)


class _UnitBench:
    def __init__(self, unit: Unit, device: Device, settings: ReplaySettings) -> None:
        self.unit, self.device, self.settings = unit, device, settings
        self.operator = unit.operator or direct.stand_in(unit)
        wanted = settings.warmup + settings.runs
        self.in_graph = True
        self.heavy = settings.load and unit.share >= HEAVY
        self.flags: list[str] = []
        self.count = max(LEAST_CALLS, min(MOST_CALLS, round(ROUND_S / max(unit.median_s, 1e-7)), wanted))
        if device.kind == "cuda":
            touched = self._plan(settings.rule)
            self.plans = replace(touched, touch=()), touched, self._plan("cold")
            self.rounds = [self._round(p) for i, p in enumerate(self.plans) if p not in self.plans[:i]]
            self.runs = [self._runner(made) for made in self.rounds]
            self.looks = [
                Looked(run, self._times(len(made.calls)), self._before(made))
                for run, made in zip(self.runs, self.rounds)
            ]

    # -- a CPU: operators by the host's clock --------------------------------------------------------------------------
    def on_cpu(self) -> list[Replayed]:
        made = self._host_round(self.settings.rule)
        samples = self._host_samples(made)
        cold = samples if self.settings.rule == "cold" else self._host_samples(self._host_round("cold"))
        method = f"{self.operator.name} called again; host clock around each call"
        first, *_ = self.unit.members
        found = Replayed(
            first.key, "ok", name=first.kernel.name, method=method, samples_ns=samples, cold_ns=stats.median(cold)
        )
        return self._with_joules([found], in_turn(made.calls), found.median_ns * 1e-9 * self.count)

    def _host_round(self, rule: str) -> _Round:
        return self._round(replace(self._plan(rule), touch=()))

    def _host_samples(self, made: _Round) -> tuple[int, ...]:
        take = timing.events(self.device, made.calls, 1)
        for _ in range(self.settings.warmup):
            take()
        return tuple(max(1, take()) for _ in range(self.settings.runs))

    # -- a GPU: kernels by the profiler, periods by events -------------------------------------------------------------
    def on_gpu(self, looked: Sequence[Looks]) -> list[Replayed]:
        """From what the profiler saw of `looks`."""
        found = [
            (made.plan, self._kernels(len(made.calls), one, len(made.plan.touch)))
            for made, one in zip(self.rounds, looked)
        ]
        plain, kernels, cold = (next(k for made, k in found if made == plan) for plan in self.plans)
        matched = self._matched(kernels, cold, self._periods(plain))
        return self._with_joules(matched, self.runs[0], self.unit.median_s * self.count)

    def _with_joules(self, found: list[Replayed], run: Call, round_s: float) -> list[Replayed]:
        """With the joules of a call, where the unit is one of those that are metered."""
        if not self.settings.energy_s or not self.unit.energy:
            return found
        return with_joules(found, self.device, run, round_s, self.count, self.settings.energy_s)

    def _before(self, made: _Round) -> Call:
        """Ahead of a round that is looked at. What is heavy rests, as in bursts: without a pause it would lower the
        clock, its own and that of the units looked at next."""
        if not self.heavy:
            return made.before
        return in_turn([lambda: timing.rest(self.unit.median_s * len(made.calls)), made.before])

    def _runner(self, made: _Round) -> Call:
        """The round as a graph; call by call where the operator cannot be captured."""
        try:
            graph = timing.capture(self.device, made.calls, len(made.calls))
            return lambda: graph.replay()
        except RuntimeError:
            self.device.synchronize()
            self.in_graph, self.flags = False, [NO_GRAPH]
            return in_turn(made.calls)

    def _periods(self, plain: Launches) -> _Periods | None:
        """A call's period in short bursts, and under unbroken load where the round needs no flush."""
        if not self.in_graph:
            return None
        run, made, d = self.runs[0], self.rounds[0], self.device
        light = not self.heavy or made.flush is not None
        burst_ns, burst_hz = self._burst(run, made, light)
        gap_ns = (burst_ns - sum(_median_ns(launches) for launches in plain)) / len(plain)
        if light:
            return _Periods(burst_ns, burst_hz, burst_ns, burst_hz, gap_ns)
        load = timing.unbroken(d, run, len(made.calls))
        timing.warm_up(d, load, SETTLE_S)
        long = collect(load, LOAD_RULE, read_clock_hz=d.clock_hz, boost_hz=d.boost_hz)
        load_hz = long.clocks_hz[-1] if long.clocks_hz else None  # readings lag behind
        return _Periods(burst_ns, burst_hz, stats.median(long.samples_ns), load_hz, gap_ns)

    def _burst(self, run: Call, made: _Round, light: bool) -> tuple[float, float | None]:
        """A call's period in short bursts, and the clock: two runs less one, so that the start of a graph cancels. A
        round that needs a flush is run once: a second would find its inputs in cache. What does not move the clock
        needs neither a rest in between nor a look at it."""
        calls, d = len(made.calls), self.device
        bursts = {"once": run} if made.flush else {"once": run, "twice": in_turn([run, run])}
        takes = {n: timing.replayed(d, r, calls, made.flush) for n, r in bursts.items()}
        if not light:
            takes = {n: timing.rested(d, take, calls) for n, take in takes.items()}
        for take in takes.values():
            take()
        rule, read_clock_hz = (GAP_RULE, None) if light else (BURST_RULE, d.clock_hz)
        found = collect_interleaved(takes, rule, read_clock_hz=read_clock_hz, boost_hz=d.boost_hz)
        once_ns = stats.median(found["once"].samples_ns)
        burst_ns = stats.median(found["twice"].samples_ns) - once_ns if "twice" in found else once_ns
        return burst_ns, found["once"].clock_hz

    def _times(self, calls: int) -> int:
        """Rounds of so many calls to look at, for as many samples as are asked for."""
        return max(2, -(-self.settings.runs // (calls - self._skipped(calls))))

    def _skipped(self, calls: int) -> int:
        return min(self.settings.warmup, calls // 4)

    def _kernels(self, calls: int, looked: Looks, ahead: int) -> Launches:
        """Launches of each kernel of a call, in the order of the call's kernels, over all rounds; the first `ahead` of
        each call only warm its inputs."""
        found: Launches = []
        for events in looked:
            each, rest = divmod(len(events), calls)
            if rest or each <= ahead:
                raise ChipError(f"{len(events)} kernels in {calls} calls: calls differ, so none can be told apart")
            found = found or [[] for _ in range(each - ahead)]
            for turn in range(self._skipped(calls), calls):
                for i, launches in enumerate(found):
                    launches.append(events[turn * each + ahead + i])
        return found

    def _matched(self, kernels: Launches, cold: Launches, periods: _Periods | None) -> list[Replayed]:
        """Members and the kernels that ran, by their names in order, else by position."""
        places = _places([m.kernel.name for m in self.unit.members], [k[0].name for k in kernels], self._positions())
        method = METHODS[self.unit.tier].format(self.operator.name)
        medians = [_median_ns(launches) for launches in kernels]
        found = []
        for member, place in zip(self.unit.members, places):
            if place is None:
                ran = ", ".join(k[0].name[:60] for k in kernels)
                found.append(Replayed(member.key, "failed", f"another kernel ran in its place: {ran}", method=method))
                continue
            samples = tuple(e.duration_ns for e in kernels[place])[: self.settings.runs]
            cold_ns = _median_ns(cold[place]) if len(cold) == len(kernels) else None
            flags = tuple(self.flags)
            one = Replayed(member.key, "ok", "", kernels[place][0].name, method, samples, cold_ns, flags=flags)
            found.append(one if periods is None else periods.added_to(one, medians[place] / sum(medians)))
        return found

    def _positions(self) -> list[int]:
        """Where each member stood among the kernels of its call; a direct call has only its own."""
        if self.unit.tier == 3:
            return [m.kernel.position for m in self.unit.members]
        return list(range(len(self.unit.members)))

    # -- calls ---------------------------------------------------------------------------------------------------------
    def _plan(self, rule: str) -> Rotation:
        return rotation(self.operator, rule, self.device.l2_bytes, self.count)

    def _round(self, plan: Rotation) -> _Round:
        buffers = rotating(self.operator, self.device.torch_device, plan)
        made = direct.calls(self.unit, buffers, self.count) if self.device.kind == "cuda" else None
        if made is None:
            made = [buffers.call(turn) for turn in range(self.count)]
        if plan.touch:
            made = [in_turn([*(buffers.touch(m, turn) for m in plan.touch), call]) for turn, call in enumerate(made)]
        return _Round(made, plan, _flush(self.device) if plan.flush and self.device.kind == "cuda" else None)


@cache
def _flush(device: Device) -> Call:
    """Reads more than the cache holds: what lies in it afterwards is clean and of no use."""
    held = torch.ones(COLD_FACTOR * device.l2_bytes // 4, device=device.torch_device)
    into = torch.empty((), device=device.torch_device)
    return lambda: torch.sum(held, (0,), out=into)


def in_turn(calls: Sequence[Call]) -> Call:
    def call() -> None:
        for one in calls:
            one()

    return call


def _median_ns(launches: Sequence[DeviceEvent]) -> float:
    return stats.median([e.duration_ns for e in launches])


def _places(wanted: Sequence[str], ran: Sequence[str], positions: Sequence[int]) -> list[int | None]:
    """Which of the kernels that ran stands for each wanted one."""
    free = list(range(len(ran)))
    found: list[int | None] = []
    for name, position in zip(wanted, positions):
        same = [i for i in free if plain(ran[i]) == plain(name)]
        place = position if position in same else same[0] if same else position if position in free else None
        if place is not None:
            free.remove(place)
        found.append(place)
    return found
