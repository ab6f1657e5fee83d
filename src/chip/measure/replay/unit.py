"""One unit run alone and timed: its calls rotate over buffers, in a CUDA graph, under the same profiler as the capture.

A kernel's duration comes from the profiler, as in the capture; by the rule `producer` that of a short kernel is taken
among its neighbours of the model (`among`). Events around the same graph without the profiler tell how long all of it
takes; what that has above the kernels' durations, over their number, is the gap between two of them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from chip import stats
from chip.measure import timing
from chip.measure.device import Device
from chip.measure.kineto import Looked, passes
from chip.measure.replay import direct
from chip.measure.replay.among import CALLS, Among, among, in_turn
from chip.measure.replay.arguments import Buffers
from chip.measure.replay.joules import with_joules
from chip.measure.timer import StopRule, collect, collect_interleaved
from chip.replay.chrome import DeviceEvent
from chip.replay.results import Replayed
from chip.replay.rotation import COLD_FACTOR, Rotation, near, rotation
from chip.replay.signatures import Unit
from chip.types import ChipError

ROUND_S = 2e-3  # a round is as many calls as take about this long
LEAST_CALLS, MOST_CALLS = 8, 128
BURST_RULE = StopRule(0.003, 8, 30, 0.15)
LOAD_RULE = StopRule(0.003, 10, 60, 0.15)
SETTLE_S = 0.1
HEAVY = 0.01  # share of the step from which a unit is run under unbroken load too; less does not move the clock
METHODS = {1: "CUDA runtime called directly", 2: "cuBLAS called directly", 3: "{} called again"}
Call = Callable[[], object]
Launches = list[list[DeviceEvent]]  # of each kernel of a call
Looks = Sequence[Sequence[DeviceEvent]]  # all kernels of a round, round by round


@dataclass(frozen=True)
class Settings:
    rule: str = "producer"
    warmup: int = 10  # calls of a round that are not counted
    runs: int = 100  # samples of each kernel
    energy_s: float = 0.0  # of repeating a unit for its joules
    load: bool = True  # look at unbroken load too: not where the model ran at the full clock


@dataclass(frozen=True)
class _Round:
    """Calls in turn. Each writes what its producer would have written, then runs the kernels of interest."""

    calls: list[Call]
    plan: Rotation
    buffers: Buffers
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


def replay_unit(unit: Unit, device: Device, settings: Settings) -> list[Replayed]:
    """Each member of the unit, timed."""
    try:
        with torch.inference_mode():
            bench = _Bench(unit, device, settings)
            return bench.on_cpu() if device.kind == "cpu" else bench.on_gpu()
    finally:
        gc.collect()
        device.empty_cache()


class _Bench:
    def __init__(self, unit: Unit, device: Device, settings: Settings) -> None:
        self.unit, self.device, self.settings = unit, device, settings
        self.operator = unit.operator or direct.stand_in(unit)
        wanted = settings.warmup + settings.runs
        self.in_graph = True
        self.flags: list[str] = []
        self.count = max(LEAST_CALLS, min(MOST_CALLS, round(ROUND_S / max(unit.median_s, 1e-7)), wanted))

    # -- a CPU: operators by the host's clock --------------------------------------------------------------------------
    def on_cpu(self) -> list[Replayed]:
        samples = self._host_samples(self.settings.rule)
        cold = samples if self.settings.rule == "cold" else self._host_samples("cold")
        method = f"{self.operator.name} called again; host clock around each call"
        first, *_ = self.unit.members
        return [
            Replayed(
                first.key, "ok", name=first.kernel.name, method=method, samples_ns=samples, cold_ns=stats.median(cold)
            )
        ]

    def _host_samples(self, rule: str) -> tuple[int, ...]:
        made = self._round(rule)
        take = timing.events(self.device, made.calls, 1)
        for _ in range(self.settings.warmup):
            take()
        return tuple(max(1, take()) for _ in range(self.settings.runs))

    # -- a GPU: kernels by the profiler, periods by events -------------------------------------------------------------
    def on_gpu(self) -> list[Replayed]:
        rule = self.settings.rule
        plain, touched, cold = self._round(rule), self._round(rule, touch=True), self._round("cold")
        rounds = [plain, *(made for made in (touched, cold) if made.plan != plain.plan)]
        runs = [self._runner(made) for made in rounds]
        looks = [Looked(run, self._times(len(made.calls)), made.before) for run, made in zip(runs, rounds)]
        neighbours = self._among()
        if neighbours is not None:
            looks.append(Looked(neighbours.run, self._times(CALLS), neighbours.before))
        looked = passes(looks, self.device)
        found = [self._kernels(len(made.calls), one, len(made.plan.touch)) for made, one in zip(rounds, looked)]
        by_plan = [(made.plan, kernels) for made, kernels in zip(rounds, found)]
        alone, again, unwarmed = (
            next(k for plan, k in by_plan if plan == made.plan) for made in (plain, touched, cold)
        )
        kernels = again
        if neighbours is not None:
            kernels = self._kernels(CALLS, looked[-1], -len(alone))
        periods = self._periods(runs[0], plain, alone, neighbours, looked[-1])
        matched = self._matched(kernels, again, unwarmed, periods)
        if not self.settings.energy_s or not self.unit.energy:
            return matched
        round_s = self.unit.median_s * len(plain.calls)
        return with_joules(matched, self.device, runs[0], round_s, len(plain.calls), self.settings.energy_s)

    def _among(self) -> Among | None:
        """The unit behind its neighbours, where the model's order is asked for and known."""
        if self.settings.rule != "producer" or not self.unit.before or not self.in_graph:
            return None
        made = self._round("producer", calls=CALLS)
        warm = near(self.operator, self.device.l2_bytes)  # what was just produced is written, the rest only read
        touches = [in_turn([made.buffers.touch(m, turn, not b) for m, b in warm.items()]) for turn in range(CALLS)]
        found = among(self.unit, self.device, made.calls, touches, self._flush, made.before)
        if isinstance(found, str):
            self.flags.append(found)
            return None
        return found

    def _runner(self, made: _Round) -> Call:
        """The round as a graph; call by call where the operator cannot be captured."""
        try:
            graph = timing.capture(self.device, made.calls, len(made.calls))
            return lambda: graph.replay()
        except RuntimeError:
            self.device.synchronize()
            self.in_graph = False
            self.flags.append("not in a graph")
            return in_turn(made.calls)

    def _periods(
        self, run: Call, made: _Round, alone: Launches, neighbours: Among | None, among_them: Looks
    ) -> _Periods | None:
        """A call's period in short bursts, and under unbroken load where the round needs no flush."""
        if not self.in_graph:
            return None
        calls, d = len(made.calls), self.device
        light = not self.settings.load or made.flush is not None or self.unit.share < HEAVY
        gap_ns = None if neighbours is None else self._gap_ns(neighbours, among_them)
        if light and gap_ns is not None:
            return _Periods(0.0, None, 0.0, None, gap_ns)
        burst_ns, burst_hz = self._burst(run, made)
        if gap_ns is None:
            gap_ns = (burst_ns - sum(_median_ns(launches) for launches in alone)) / len(alone)
        if light:
            return _Periods(burst_ns, burst_hz, burst_ns, burst_hz, gap_ns)
        load = timing.unbroken(d, run, calls)
        timing.warm_up(d, load, SETTLE_S)
        long = collect(load, LOAD_RULE, read_clock_hz=d.clock_hz, boost_hz=d.boost_hz)
        return _Periods(burst_ns, burst_hz, stats.median(long.samples_ns), long.clock_hz, gap_ns)

    def _gap_ns(self, neighbours: Among, looked: Looks) -> float:
        """Between two kernels, on average over the whole graph of neighbours."""
        whole = collect(timing.replayed(self.device, neighbours.run, 1, neighbours.before), BURST_RULE)
        kernels_ns = stats.median([sum(e.duration_ns for e in events) for events in looked])
        return (stats.median(whole.samples_ns) - kernels_ns) / len(looked[0])

    def _burst(self, run: Call, made: _Round) -> tuple[float, float | None]:
        """A call's period in short bursts, and the clock: two runs less one, so that the start of a graph cancels. A
        round that needs a flush is run once: a second would find its inputs in cache."""
        calls, d = len(made.calls), self.device
        bursts = {"once": run} if made.flush else {"once": run, "twice": in_turn([run, run])}
        takes = {n: timing.rested(d, timing.replayed(d, r, calls, made.flush), calls) for n, r in bursts.items()}
        for take in takes.values():
            take()
        found = collect_interleaved(takes, BURST_RULE, read_clock_hz=d.clock_hz, boost_hz=d.boost_hz)
        once_ns = stats.median(found["once"].samples_ns)
        burst_ns = stats.median(found["twice"].samples_ns) - once_ns if "twice" in found else once_ns
        return burst_ns, found["once"].clock_hz

    def _times(self, calls: int) -> int:
        """Rounds of so many calls to look at, for as many samples as are asked for."""
        return max(2, -(-self.settings.runs // (calls - self._skipped(calls))))

    def _skipped(self, calls: int) -> int:
        return min(self.settings.warmup, calls // 4)

    def _kernels(self, calls: int, looked: Looks, ahead: int) -> Launches:
        """Launches of each kernel of a call, in the order of the call's kernels, over all rounds. What comes ahead of
        them in each call is left out: so many kernels or, if negative, all but so many."""
        found: Launches = []
        for events in looked:
            each, rest = divmod(len(events), calls)
            first = ahead if ahead >= 0 else each + ahead
            if rest or not 0 <= first < each:
                raise ChipError(f"{len(events)} kernels in {calls} calls: calls differ, so none can be told apart")
            found = found or [[] for _ in range(each - first)]
            for turn in range(self._skipped(calls), calls):
                for i, launches in enumerate(found):
                    launches.append(events[turn * each + first + i])
        return found

    def _matched(self, kernels: Launches, again: Launches, cold: Launches, periods: _Periods | None) -> list[Replayed]:
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
            again_ns = None if kernels is again else _median_ns(again[place])
            one = Replayed(member.key, "ok", "", kernels[place][0].name, method, samples, cold_ns)
            one = replace(one, again_ns=again_ns, flags=tuple(self.flags))
            found.append(one if periods is None else periods.added_to(one, medians[place] / sum(medians)))
        return found

    def _positions(self) -> list[int]:
        """Where each member stood among the kernels of its call; a direct call has only its own."""
        if self.unit.tier == 3:
            return [m.kernel.position for m in self.unit.members]
        return list(range(len(self.unit.members)))

    # -- calls ---------------------------------------------------------------------------------------------------------
    def _round(self, rule: str, touch: bool = False, calls: int = 0) -> _Round:
        count = calls or self.count
        plan = rotation(self.operator, rule, self.device.l2_bytes, count)
        if not touch:
            plan = replace(plan, touch=())
        buffers = Buffers(self.operator, self.device.torch_device, plan)
        made = direct.calls(self.unit, buffers, count) if self.device.kind == "cuda" else None
        if made is None:
            made = [buffers.call(turn) for turn in range(count)]
        if plan.touch:
            made = [in_turn([*(buffers.touch(m, turn) for m in plan.touch), call]) for turn, call in enumerate(made)]
        return _Round(made, plan, buffers, self._flush if plan.flush and self.device.kind == "cuda" else None)

    @cached_property
    def _flush(self) -> Call:
        """Reads more than the cache holds: what lies in it afterwards is clean and of no use."""
        where = self.device.torch_device
        held = torch.ones(COLD_FACTOR * self.device.l2_bytes // 4, device=where)
        into = torch.empty((), device=where)
        return lambda: torch.sum(held, (0,), out=into)


def _median_ns(launches: Sequence[DeviceEvent]) -> float:
    return stats.median([e.duration_ns for e in launches])


def _places(wanted: Sequence[str], ran: Sequence[str], positions: Sequence[int]) -> list[int | None]:
    """Which of the kernels that ran stands for each wanted one."""
    free = list(range(len(ran)))
    found: list[int | None] = []
    for name, position in zip(wanted, positions):
        same = [i for i in free if ran[i] == name]
        place = position if position in same else same[0] if same else position if position in free else None
        if place is not None:
            free.remove(place)
        found.append(place)
    return found
