"""Timing our kernels beside what PyTorch ships: in turn, cold, at the same thermal state.

Every variant of a call has its own inputs, as many sets as keep them out of cache, and is sampled in alternating order
with the others. Variants more than SLOWER times as slow as the fastest are sampled by themselves: they would starve it.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from chip import stats
from chip.files import measurements
from chip.hardware.roofline import Roofs, label
from chip.lab.kernels.check import distance, together
from chip.lab.kernels.subjects import KernelSubject
from chip.lab.kernels.triton.language import FALLBACK
from chip.lab.measure import timing
from chip.lab.measure.build import around
from chip.lab.measure.device import Device, reason_of
from chip.lab.measure.energy import EnergyProbe, EnergyReading, probe_for
from chip.lab.measure.limits import is_sustained
from chip.lab.measure.profile import impossible
from chip.lab.measure.stopping import Samples, StopRule, Take, collect_interleaved
from chip.types import ChipError, Measurement, Op

SCHEMA = "chip.kernel_bench/1"
SHORT_S = 100e-6  # below this a call is replayed in a graph: the host may take as long to launch it
SAMPLE_S = 0.5e-3
LONG_SAMPLE_S = 4e-3  # of long arithmetic, whose clock must not wander between samples
SLOWER = 8
SLOW_S = 0.1  # a call this long is sampled FEW times
FEW = 2
MAX_SETS = 512
RULE = StopRule(0.003, 20, 100, 0.3)
BEHIND = StopRule(0.01, 10, 20, 0.1)  # for what is SLOWER: nobody compares it closely
TRUTH_BYTES = 2**31  # inputs larger than this in float64 are not compared: the check has done that


@dataclass(frozen=True)
class BenchSettings:
    rule: StopRule = RULE
    warm_s: float = 0.1
    energy_s: float = 0.2  # of load for each variant; 0: no energy


QUICK = BenchSettings(StopRule(0.01, 10, 30, 0.1), 0.05, 0.0)


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """One variant of one call."""

    measurement: Measurement  # its `implementation` is the variant
    ours: bool
    p50_s: float | None = None
    p95_s: float | None = None
    bytes_per_s: float | None = None
    flops_per_s: float | None = None
    share_of_copy: float | None = None  # of the measured bandwidth at this mix of reads and writes
    max_error: float | None = None  # against float64
    joules: float | None = None  # a call, idle power included
    speedup_p50: float | None = None  # of ours, over the best of the others
    speedup_p95: float | None = None
    against: str = ""
    verdict: str = ""  # faster, slower, unclear


class _Variant:
    """A way to compute a call, with the closures that do."""

    def __init__(self, name: str, ours: bool, call: Callable[..., Any]) -> None:
        self.name, self.ours, self.call = name, ours, call
        self.closures: list[Callable[[], Any]] = []
        self.call_s = 0.0
        self.failed = ""


def bench(s: KernelSubject, op: Op, device: Device, roofs: Roofs | None, settings: BenchSettings) -> list[TimedKernel]:
    """Every variant of one call."""
    with around(op, ""):
        try:
            run = _Run(s, op, device, roofs, settings)
        except (MemoryError, RuntimeError) as e:
            raise ChipError(f"{label(op)} cannot be set up here: {reason_of(e)}") from None
        try:
            return run.measure()
        finally:
            run.close()


class _Run:
    def __init__(self, s: KernelSubject, op: Op, device: Device, roofs: Roofs | None, settings: BenchSettings) -> None:
        self.s, self.op, self.device, self.roofs, self.settings = s, op, device, roofs, settings
        self.generator = torch.Generator(device.torch_device).manual_seed(7)
        read = op.cost().read_bytes
        count = min(MAX_SETS, timing.cold_copies(device, read)) if device.kind == "cuda" else 2
        self.sets = [s.module.inputs(op, device.torch_device, self.generator) for _ in range(count)]
        self.variants = self._variants()
        self.probe: EnergyProbe = probe_for(device)

    def close(self) -> None:
        self.sets, self.variants = [], []
        gc.collect()
        self.device.empty_cache()

    def _variants(self) -> list[_Variant]:
        native = self.s.module.native
        variants = [_Variant(self.s.baseline, False, native)]
        if self.s.compiled and self.device.kind == "cuda":
            torch._dynamo.reset()  # each call its own program: shapes are constants, as in a model
            variants.append(_Variant("compile", False, torch.compile(native, dynamic=False)))
        if hasattr(self.s.module, "rivals"):
            variants += [_Variant(name, False, call) for name, call in self.s.module.rivals(*self.sets[0]).items()]
        out = together(native(*self.sets[0]))
        usable = [
            v for v in self.s.variants if (not v.unusable or v.name == FALLBACK) and not v.takes(*self.sets[0], *out)
        ]
        variants += [_Variant(v.name, v.name != FALLBACK, v.call) for v in usable]
        return variants

    # -- one call ------------------------------------------------------------------------------------------------------
    def measure(self) -> list[TimedKernel]:
        errors = self._prepare()
        alive = [v for v in self.variants if not v.failed]
        fastest = min(v.call_s for v in alive)
        level = [v for v in alive if v.call_s <= SLOWER * fastest]
        samples = self._collect(level)
        for v in alive:
            if v not in level:
                samples.update(self._collect([v], BEHIND))
        timed = [self._timed(v, samples.get(v.name), errors.get(v.name)) for v in self.variants]
        return _compared(timed)

    def _prepare(self) -> dict[str, float]:
        """Run each once (compiling, loading), see how long it takes and how far from the truth it lands."""
        truth = None
        if sum(t.numel() for t in self.sets[0]) * 8 <= TRUTH_BYTES:
            truth = together(self.s.module.reference(*self.sets[0]))
        errors = {}
        for v in self.variants:
            try:
                start = time.perf_counter()
                got = together(v.call(*self.sets[0]))
                self.device.synchronize()
                first_s = time.perf_counter() - start
                if truth is not None:
                    errors[v.name] = max(distance(g, t) for g, t in zip(got, truth))
                v.closures = [partial(v.call, *tensors) for tensors in self.sets]
                v.call_s = self._call_s(v, first_s)
            except Exception as e:
                v.failed = reason_of(e)
                self.device.synchronize()
        return errors

    def _call_s(self, v: _Variant, first_s: float) -> float:
        """About how long a call takes. The first one also loads and compiles: where it was long, look again."""
        again_s = timing.host(self.device, v.closures[0])() * 1e-9 if first_s > SLOW_S else first_s
        return again_s if again_s > SLOW_S else timing.events(self.device, v.closures, 5)() * 1e-9

    def _collect(self, variants: Sequence[_Variant], rule: StopRule | None = None) -> dict[str, tuple[Samples, str]]:
        rule = rule or self.settings.rule
        if any(v.call_s > SLOW_S for v in variants):
            rule = replace(rule, min_samples=FEW, max_samples=FEW)
        takes, methods = {}, {}
        for v in variants:
            takes[v.name], methods[v.name] = self._take(v)
        end = time.monotonic() + self.settings.warm_s * len(takes) * (4 if is_sustained(self.op) else 1)
        for take in itertools.cycle(takes.values()):
            if time.monotonic() > end or any(v.call_s > SLOW_S for v in variants):
                break
            take()
        samples = collect_interleaved(takes, rule, self.device)
        others = len(takes) - 1
        shared = f"in turn with {others} other{'s' if others != 1 else ''}" if others else "by itself"
        return {n: (f.require_time(label(self.op)), f"{methods[n]}, {shared}") for n, f in samples.items()}

    def _take(self, v: _Variant) -> tuple[Take, str]:
        n, wanted = len(v.closures), LONG_SAMPLE_S if is_sustained(self.op) else SAMPLE_S
        inner = max(1, min(2048, round(wanted / max(v.call_s, 1e-7))))
        sets = f"{n} buffer set{'s' if n > 1 else ''} in turn"
        if v.call_s > SLOW_S:
            return timing.host(self.device, v.closures[0]), "host clock around a call, by itself"
        if self.device.kind == "cuda" and v.call_s < SHORT_S:
            inner = n * max(1, round(inner / n))
            return timing.graph(self.device, v.closures, inner), f"graph of {inner} calls between events, {sets}"
        return timing.events(self.device, v.closures, inner), f"events around {inner} calls, {sets}"

    def _joules(self, v: _Variant) -> float | None:
        """Joules of one call, from seconds of nothing else; idle power is part of it."""
        if not self.settings.energy_s or self.device.kind != "cuda" or v.call_s > SLOW_S:
            return None
        run = v.closures[0]
        batch = max(1, round(5e-3 / max(v.call_s, 1e-6)))
        if v.call_s < SHORT_S:
            run = timing.capture(self.device, v.closures, batch).replay
        self.probe.start()
        count, end = 0, time.monotonic() + self.settings.energy_s
        while time.monotonic() < end:
            for _ in range(1 if v.call_s < SHORT_S else batch):
                run()
            count += batch
            self.device.synchronize()
        used = self.probe.stop()
        return used.joules / count if isinstance(used, EnergyReading) else None

    def _timed(self, v: _Variant, sampled: tuple[Samples, str] | None, error: float | None) -> TimedKernel:
        blank = Measurement(measurements.record(self.op), v.name, "cold", "failed", v.failed, device=self.device.title)
        if not sampled:
            return TimedKernel(blank, v.ours)
        samples, method = sampled
        p50 = stats.median(samples.samples_ns) * 1e-9
        too_fast = impossible(self.op, p50, self.device, samples.clock_hz)
        if too_fast:
            return TimedKernel(replace(blank, reason=too_fast, method=method), v.ours)
        now = self.device.sensors()
        m = replace(
            blank, status="ok", reason="", samples_ns=samples.samples_ns, method=method, clock_hz=samples.clock_hz,
            watts=now.watts, celsius=now.celsius, flags=samples.flags,
        )  # fmt: skip
        cost = self.op.cost()
        return TimedKernel(
            m,
            v.ours,
            p50,
            stats.quantile(samples.samples_ns, 0.95) * 1e-9,
            cost.bytes / p50,
            cost.flops / p50,
            cost.bytes / p50 / self.roofs.bandwidth(cost) if self.roofs else None,
            error,
            self._joules(v),
        )


def _compared(timed: list[TimedKernel]) -> list[TimedKernel]:
    """Ours against the best of the others: by the median, and by the 95th percentiles."""
    others = [t for t in timed if not t.ours and t.p50_s and t.measurement.implementation != FALLBACK]
    if not others:
        return timed
    best = min((t.measurement for t in others), key=lambda m: stats.median(m.samples_ns))

    def compared(t: TimedKernel) -> TimedKernel:
        if not t.ours or not t.p50_s:
            return t
        first, second = best.samples_ns, t.measurement.samples_ns
        return replace(
            t,
            speedup_p50=stats.median(first) / stats.median(second),
            speedup_p95=stats.quantile(first, 0.95) / stats.quantile(second, 0.95),
            against=best.implementation,
            verdict=stats.compare(first, second).verdict,
        )

    return [compared(t) for t in timed]
