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
from chip.lab.measure import timing
from chip.lab.measure.device import Device, reason_of
from chip.lab.measure.energy import NotAvailable, idle_watts, joules_above, probe_for
from chip.lab.measure.kineto import Looked, passes
from chip.lab.measure.replay import direct
from chip.lab.measure.replay.arguments import rotating
from chip.lab.measure.stopping import StopRule, collect, collect_interleaved
from chip.lab.replay.chrome import DeviceEvent
from chip.lab.replay.results import NO_GRAPH, Replayed
from chip.lab.replay.rotation import COLD_FACTOR, Rotation, rotation
from chip.lab.replay.signatures import Unit
from chip.lab.replay.tiers import plain
from chip.types import ChipError

BATCH_S = 0.02  # of metered work between synchronisations
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
            self.runs = [self._runner(one_round) for one_round in self.rounds]
            self.looks = [
                Looked(run, self._times(len(one_round.calls)), self._before(one_round))
                for run, one_round in zip(self.runs, self.rounds)
            ]

    # -- a CPU: operators by the host's clock --------------------------------------------------------------------------
    def on_cpu(self) -> list[Replayed]:
        one_round = self._host_round(self.settings.rule)
        samples = self._host_samples(one_round)
        cold = samples if self.settings.rule == "cold" else self._host_samples(self._host_round("cold"))
        method = f"{self.operator.name} called again; host clock around each call"
        first, *_ = self.unit.members
        kernel = Replayed(
            first.key, "ok", name=first.kernel.name, method=method, samples_ns=samples, cold_ns=stats.median(cold)
        )
        return self._with_joules([kernel], in_turn(one_round.calls), kernel.median_ns * 1e-9 * self.count)

    def _host_round(self, rule: str) -> _Round:
        return self._round(replace(self._plan(rule), touch=()))

    def _host_samples(self, one_round: _Round) -> tuple[int, ...]:
        take = timing.events(self.device, one_round.calls, 1)
        for _ in range(self.settings.warmup):
            take()
        return tuple(max(1, take()) for _ in range(self.settings.runs))

    # -- a GPU: kernels by the profiler, periods by events -------------------------------------------------------------
    def on_gpu(self, looked: Sequence[Looks]) -> list[Replayed]:
        """From what the profiler saw of `looks`."""
        by_plan = [
            (one_round.plan, self._kernels(len(one_round.calls), one, len(one_round.plan.touch)))
            for one_round, one in zip(self.rounds, looked)
        ]
        plain, kernels, cold = (next(k for one_round, k in by_plan if one_round == plan) for plan in self.plans)
        matched = self._matched(kernels, cold, self._periods(plain))
        return self._with_joules(matched, self.runs[0], self.unit.median_s * self.count)

    def _with_joules(self, kernels: list[Replayed], run: Call, round_s: float) -> list[Replayed]:
        """With the joules of a call, where the unit is one of those that are metered."""
        if not self.settings.energy_s or not self.unit.energy:
            return kernels
        return with_joules(kernels, self.device, run, round_s, self.count, self.settings.energy_s)

    def _before(self, one_round: _Round) -> Call:
        """Ahead of a round that is looked at. What is heavy rests, as in bursts: without a pause it would lower the
        clock, its own and that of the units looked at next."""
        if not self.heavy:
            return one_round.before
        return in_turn([lambda: timing.rest(self.unit.median_s * len(one_round.calls)), one_round.before])

    def _runner(self, one_round: _Round) -> Call:
        """The round as a graph; call by call where the operator cannot be captured."""
        try:
            graph = timing.capture(self.device, one_round.calls, len(one_round.calls))
            return lambda: graph.replay()
        except RuntimeError:
            self.device.synchronize()
            self.in_graph, self.flags = False, [NO_GRAPH]
            return in_turn(one_round.calls)

    def _periods(self, plain: Launches) -> _Periods | None:
        """A call's period in short bursts, and under unbroken load where the round needs no flush."""
        if not self.in_graph:
            return None
        run, one_round, d = self.runs[0], self.rounds[0], self.device
        light = not self.heavy or one_round.flush is not None
        burst_ns, burst_hz = self._burst(run, one_round, light)
        gap_ns = (burst_ns - sum(_median_ns(launches) for launches in plain)) / len(plain)
        if light:
            return _Periods(burst_ns, burst_hz, burst_ns, burst_hz, gap_ns)
        load = timing.unbroken(d, run, len(one_round.calls))
        timing.warm_up(d, load, SETTLE_S)
        long = collect(load, LOAD_RULE, d)
        load_hz = long.clocks_hz[-1] if long.clocks_hz else None  # readings lag behind
        return _Periods(burst_ns, burst_hz, stats.median(long.samples_ns), load_hz, gap_ns)

    def _burst(self, run: Call, one_round: _Round, light: bool) -> tuple[float, float | None]:
        """A call's period in short bursts, and the clock: two runs less one, so that the start of a graph cancels. A
        round that needs a flush is run once: a second would find its inputs in cache. What does not move the clock
        needs neither a rest in between nor a look at it."""
        calls, d = len(one_round.calls), self.device
        bursts = {"once": run} if one_round.flush else {"once": run, "twice": in_turn([run, run])}
        takes = {n: timing.replayed(d, r, calls, one_round.flush) for n, r in bursts.items()}
        if not light:
            takes = {n: timing.rested(d, take, calls) for n, take in takes.items()}
        for take in takes.values():
            take()
        samples = collect_interleaved(takes, GAP_RULE) if light else collect_interleaved(takes, BURST_RULE, d)
        once_ns = stats.median(samples["once"].samples_ns)
        burst_ns = stats.median(samples["twice"].samples_ns) - once_ns if "twice" in samples else once_ns
        return burst_ns, samples["once"].clock_hz

    def _times(self, calls: int) -> int:
        """Rounds of so many calls to look at, for as many samples as are asked for."""
        return max(2, -(-self.settings.runs // (calls - self._skipped(calls))))

    def _skipped(self, calls: int) -> int:
        return min(self.settings.warmup, calls // 4)

    def _kernels(self, calls: int, looked: Looks, ahead: int) -> Launches:
        """Launches of each kernel of a call, in the order of the call's kernels, over all rounds; the first `ahead` of
        each call only warm its inputs."""
        by_kernel: Launches = []
        for events in looked:
            each, rest = divmod(len(events), calls)
            if rest or each <= ahead:
                raise ChipError(f"{len(events)} kernels in {calls} calls: calls differ, so none can be told apart")
            by_kernel = by_kernel or [[] for _ in range(each - ahead)]
            for turn in range(self._skipped(calls), calls):
                for i, launches in enumerate(by_kernel):
                    launches.append(events[turn * each + ahead + i])
        return by_kernel

    def _matched(self, kernels: Launches, cold: Launches, periods: _Periods | None) -> list[Replayed]:
        """Members and the kernels that ran, by their names in order, else by position."""
        places = _places([m.kernel.name for m in self.unit.members], [k[0].name for k in kernels], self._positions())
        method = METHODS[self.unit.tier].format(self.operator.name)
        medians = [_median_ns(launches) for launches in kernels]
        matched = []
        for member, place in zip(self.unit.members, places):
            if place is None:
                ran = ", ".join(k[0].name[:60] for k in kernels)
                matched.append(Replayed(member.key, "failed", f"another kernel ran in its place: {ran}", method=method))
                continue
            samples = tuple(e.duration_ns for e in kernels[place])[: self.settings.runs]
            cold_ns = _median_ns(cold[place]) if len(cold) == len(kernels) else None
            flags = tuple(self.flags)
            one = Replayed(member.key, "ok", "", kernels[place][0].name, method, samples, cold_ns, flags=flags)
            matched.append(one if periods is None else periods.added_to(one, medians[place] / sum(medians)))
        return matched

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
        calls = direct.calls(self.unit, buffers, self.count) if self.device.kind == "cuda" else None
        if calls is None:
            calls = [buffers.call(turn) for turn in range(self.count)]
        if plan.touch:
            calls = [in_turn([*(buffers.touch(m, turn) for m in plan.touch), call]) for turn, call in enumerate(calls)]
        return _Round(calls, plan, _flush(self.device) if plan.flush and self.device.kind == "cuda" else None)


def with_joules(
    kernels: list[Replayed], device: Device, run: Call, round_s: float, calls: int, seconds: float
) -> list[Replayed]:
    """With the joules of one call of a round of `calls`, idle power subtracted, shared out by length."""
    repeat = max(1, round(BATCH_S / max(round_s, 1e-6)))

    def work() -> None:
        for _ in range(repeat):
            run()
        device.synchronize()

    joules = joules_above(probe_for(device), work, seconds, watts_at_rest(device))
    if isinstance(joules, NotAvailable):
        return kernels
    total_ns = sum(r.median_ns for r in kernels if r.status == "ok") or 1
    each_ns = joules / (repeat * calls) / total_ns
    return [replace(r, joules=each_ns * r.median_ns) if r.status == "ok" else r for r in kernels]


@cache
def watts_at_rest(device: Device) -> float | NotAvailable:
    """Once for all units of a worker."""
    return idle_watts(probe_for(device))


@cache
def _flush(device: Device) -> Call:
    """Reads more than the cache holds: what lies in it afterwards is clean and of no use."""
    filler = torch.ones(COLD_FACTOR * device.l2_bytes // 4, device=device.torch_device)
    into = torch.empty((), device=device.torch_device)
    return lambda: torch.sum(filler, (0,), out=into)


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
    places: list[int | None] = []
    for name, position in zip(wanted, positions):
        same = [i for i in free if plain(ran[i]) == plain(name)]
        place = position if position in same else same[0] if same else position if position in free else None
        if place is not None:
            free.remove(place)
        places.append(place)
    return places
