"""Measuring operators: the same call cold, hot, in a graph and as the host sees it, side by side.

cold   buffer sets used in turn, together over four times the last cache: weights and activations come from memory
hot    the same buffers again and again
graph  the cold rotation inside one CUDA graph
host   by the host's clock, call by call, dispatch and synchronisation included

Device time is taken between events, behind a blocking kernel where the host would be too slow; kernels shorter than
SHORT_S are replayed as a graph, so that no launch is timed, and longer ones run without a pause. Before the first
sample of each context the very thing that is sampled runs for `warm_s`, so that clocks have settled to what this work
leads to. Where `rested`, short samples have a rest after each instead, so that clocks do not fall.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from chip import stats
from chip.files import measurements
from chip.hardware.roofline import label
from chip.lab.measure import build, disturbance, layer_chain, limits, own_ops, timing
from chip.lab.measure.device import Device, reason_of
from chip.lab.measure.limits import is_sustained
from chip.lab.measure.stopping import Samples, StopRule, Take, collect
from chip.lab.measure.suites import SuiteCase
from chip.ops.attention import Attention
from chip.ops.linear import Linear
from chip.types import Measurement, Op

SHORT_S = 20e-6
SAMPLE_S = 0.4e-3  # a sample is as many calls as take about this long
LONG_SAMPLE_S = 8e-3  # under unbroken load
BURST_S = 1e-3  # where a rest comes after it
STARVED_S = 100e-6  # a slow host enqueues calls shorter than this no faster than the device runs them, ...
STARVED_SHARE = 0.5  # ... and calls of many kernels where handing them over takes this share of their run
MAX_SETS = 512
SPREAD_SETS, SPREAD_BYTES = 8, 8e9  # where a buffer lies changes its speed by a per cent or two: take several places
MAX_INNER = 2048
ONE_SET = ("hot", "host", "layer")  # contexts; what lies between two calls in a layer leaves none of it in cache
LAYER_S, LAYERS_S, LEAST_LAYERS = 75e-6, 1.5e-3, 3  # of the other kernels of a layer; of layers in a sample
SPAN_SHARE = 0.7  # of the device's memory


@dataclass(frozen=True)
class ProfileSettings:
    runs: int = 100  # samples of each context, unless the time cap comes first
    noise: float = 0.005  # up to three times as many are taken until the median is known this well
    max_s: float = 1.0  # of sampling, for each context
    warm_s: float = 0.2  # before the first context, a quarter of it before each other
    cpu_cold_bytes: int = 2**29  # filling more buffers than this would take a CPU longer than measuring
    arithmetic_warm_s: float = 1.5  # instead, before long arithmetic: its clock takes a while to settle
    span_bytes: float = 0.0  # cold buffers together take at least this: in a model addresses lie far apart
    rested: bool = False  # a rest after each sample: at the boost clock, as the first 50 ms of a prompt run
    only: tuple[str, ...] = ()  # contexts; empty: all that the device has

    @property
    def rule(self) -> StopRule:
        return StopRule(self.noise, self.runs, 3 * self.runs, self.max_s)


QUICK = ProfileSettings(runs=20, noise=0.02, max_s=0.12, warm_s=0.04, cpu_cold_bytes=2**26, arithmetic_warm_s=0.04)


# Many shapes, each known to a per cent or so: estimators are fitted to them, and average over neighbours.
TABLES = ProfileSettings(
    runs=6,
    noise=0.01,
    max_s=0.04,
    warm_s=0.03,
    cpu_cold_bytes=2**26,
    arithmetic_warm_s=0.12,
    only=("cold", "hot", "layer"),
)

# For kernels of which a prompt is one burst.
BURSTS = replace(TABLES, max_s=0.15, arithmetic_warm_s=TABLES.warm_s, rested=True)


def contexts(device: Device, only: Collection[str] = ()) -> tuple[str, ...]:
    """`layer` only where it is asked for."""
    usual = ("cold", "hot", "graph", "host") if device.kind == "cuda" else ("cold", "hot", "host")
    return tuple(c for c in (*usual, "layer") if (c in only if only else c in usual))


def name_cases(cases: Sequence[SuiteCase], device: Device) -> list[SuiteCase]:
    """The cases with their implementations named."""
    return [replace(c, implementation=_implementation(c, device)) for c in cases]


def _implementation(case: SuiteCase, device: Device) -> str:
    try:
        return build.choose(case.op, device.kind, case.implementation)
    except build.Unsupported:
        return case.implementation or "torch"


def missing(
    case: SuiteCase, device: Device, done: Collection[measurements.Key], only: Collection[str] = ()
) -> list[str]:
    """Contexts of a (named) case that are not measured yet."""
    op = measurements.record(case.op)
    wanted = [c for c in contexts(device, only) if case.context in ("", c)]
    return [c for c in wanted if measurements.key(op, case.implementation, c) not in done]


def profile_case(
    case: SuiteCase, device: Device, wanted: Sequence[str], settings: ProfileSettings
) -> Iterator[Measurement]:
    """Measure one (named) case; whatever goes wrong becomes its record. Ends the run only when the device is lost."""
    blank = Measurement(measurements.record(case.op), case.implementation, "", "failed", device=device.title)
    left = list(wanted)
    try:
        with build.around(case.op, case.implementation):
            for record in _OperatorBench(case, device, settings, blank, wanted).measure(wanted):
                left.remove(record.context)
                yield record
    except build.Unsupported as e:
        yield from (replace(blank, context=c, status="skipped", reason=str(e)) for c in left)
    except Exception as e:  # out of memory, a dtype without kernel, a launch that failed: a record each, and on
        reason = reason_of(e)
        yield from (replace(blank, context=c, reason=reason) for c in left)
        device.require_alive()
    finally:
        gc.collect()
        device.empty_cache()


class _OperatorBench:
    """One operator's buffer sets and the takes made of them; lives as long as its case."""

    def __init__(
        self, case: SuiteCase, device: Device, settings: ProfileSettings, blank: Measurement, wanted: Collection[str]
    ) -> None:
        self.op, self.device, self.settings, self.blank = case.op, device, settings, blank
        self.generator = torch.Generator(device.torch_device).manual_seed(20)
        self.implementation = case.implementation
        first = self._build()
        first()  # what is loaded, chosen or compiled on first use
        device.synchronize()
        self.call_s = timing.events(device, [first], 5)() * 1e-9
        self.starved = timing.enqueue(device, first, 3)() * 1e-9 > STARVED_SHARE * self.call_s
        rotated = {"cold", "graph"} & set(wanted)
        self.calls = [first, *(self._build() for _ in range(self._sets() - 1 if rotated else 0))]
        self.warmed, self.capturable = False, True

    def _build(self) -> build.Closure:
        return build.build(self.op, self.device.torch_device, self.generator, self.implementation)

    def _bytes(self) -> float:
        cost = self.op.cost()
        return cost.read_bytes or cost.write_bytes

    def _sets(self) -> int:
        wanted = timing.cold_copies(self.device, self._bytes())
        if self.device.kind == "cpu":
            wanted = min(wanted, int(self.settings.cpu_cold_bytes // self._bytes()) + 2)
        elif SPREAD_SETS * self.op.cost().bytes <= SPREAD_BYTES:
            wanted = max(wanted, SPREAD_SETS)
        span = min(self.settings.span_bytes, SPAN_SHARE * self.device.memory_bytes)
        return max(1, min(max(wanted, int(span // self.op.cost().bytes)), MAX_SETS))

    def measure(self, wanted: Sequence[str]) -> Iterator[Measurement]:
        collected: dict[str, tuple[Samples, str]] = {}
        for context in wanted:
            try:
                if context == "graph" and "cold" in collected and self._by_graph:
                    samples, method = collected["cold"]
                    method += "; the samples of cold"
                else:
                    samples, method = self._collect_somehow(context)
            except build.Unsupported:
                raise
            except Exception as e:  # a graph that cannot be captured leaves the other contexts to be measured
                yield replace(self.blank, context=context, reason=reason_of(e))
                self.device.require_alive()
                continue
            collected[context] = (samples, method)
            yield self._record(context, samples, method)

    def _collect_somehow(self, context: str) -> tuple[Samples, str]:
        """By graph where the kernel is short, behind a blocking kernel where that graph cannot be captured."""
        try:
            return self._collect(context)
        except RuntimeError:
            if not self._by_graph or context == "graph":
                raise
            self.capturable = False
            self.device.require_alive()
            return self._collect(context)

    @property
    def _by_graph(self) -> bool:
        return self.device.kind == "cuda" and self.capturable and (self.call_s < SHORT_S or self.starved)

    def _collect(self, context: str) -> tuple[Samples, str]:
        take, method = self._take(context)
        rest_s = self._warm_s * (0.25 if self.warmed else 1.0)
        timing.warm_up(self.device, take, rest_s)
        self.warmed = True
        before = disturbance.switches()
        samples = collect(take, self.settings.rule, self.device)
        samples.require_time(label(self.op))
        if self.device.kind == "cpu" or context == "host":
            lost = disturbance.switches() - before
            samples = replace(samples, flags=(*samples.flags, *disturbance.switch_flags(lost, len(samples.samples_ns))))
        return samples, f"{method}; warmed up {rest_s:.2g} s with the same work; {self._coldness(context)}"

    @property
    def _warm_s(self) -> float:
        return self.settings.arithmetic_warm_s if is_sustained(self.op) else self.settings.warm_s

    def _take(self, context: str) -> tuple[Take, str]:
        calls = self.calls[:1] if context in ONE_SET else self.calls
        if context == "host":
            return timing.host(self.device, calls[0]), "host clock around call and synchronisation"
        if context == "layer":
            return self._in_layer(calls[0])
        if self.settings.rested and self.device.kind == "cuda":
            return self._burst(context, calls)
        if self.device.kind == "cuda" and (self.call_s >= SHORT_S or is_sustained(self.op)):
            return self._unbroken(context, calls)
        inner = max(1, min(MAX_INNER, round(SAMPLE_S / max(self.call_s, 1e-7))))
        if context == "graph" or self._by_graph:
            inner = len(calls) * max(1, round(inner / len(calls)))
            return timing.graph(self.device, calls, inner), f"graph of {inner} calls between events"
        if self.device.kind == "cpu":
            return timing.events(self.device, calls, inner), f"host clock around {inner} calls"
        return timing.events(self.device, calls, inner), f"events around {inner} calls"

    def _unbroken(self, context: str, calls: Sequence[build.Closure]) -> tuple[Take, str]:
        """Without a pause between samples: with pauses, clocks and so times would wander."""
        inner = max(1, round(LONG_SAMPLE_S / max(self.call_s, 1e-7)))
        if context == "graph" or self.call_s < STARVED_S or self.starved:
            inner = len(calls) * max(1, round(inner / len(calls)))
            replay = timing.capture(self.device, calls, inner).replay
            return timing.unbroken(self.device, replay, inner), f"graph of {inner} calls, unbroken load"
        rotation = itertools.cycle(calls)

        def run() -> None:
            for _ in range(inner):
                next(rotation)()

        return timing.unbroken(self.device, run, inner), f"{inner} calls between events, unbroken load"

    def _burst(self, context: str, calls: Sequence[build.Closure]) -> tuple[Take, str]:
        if self.implementation == own_ops.NAME and not isinstance(self.op, Linear):
            return self._between(calls[: own_ops.BESIDE_SETS] if isinstance(self.op, Attention) else calls[:1])
        inner = max(1, round(BURST_S / max(self.call_s, 1e-7)))
        if context == "graph" or self.call_s < STARVED_S or self.starved:
            inner = len(calls) * max(1, round(inner / len(calls)))
            take, by = timing.graph(self.device, calls, inner), f"graph of {inner} calls between events"
        else:
            take, by = timing.events(self.device, calls, inner), f"events around {inner} calls"
        return timing.rested(self.device, take, inner), f"{by}, {measurements.RESTED}"

    def _between(self, calls: Sequence[build.Closure]) -> tuple[Take, str]:
        """What a call adds to a chain of products, one between each two: it starts while the one before ends, and the
        next loads weights meanwhile. Its input is what a kernel before it has just written, so it is not rotated; the
        pages that attention reads are."""
        products = own_ops.products_beside(self.op, self.device.torch_device, self.generator)
        count = len(products) * max(1, round(BURST_S / len(products) / (self.call_s + SHORT_S)))
        pairs = [f for i in range(count) for f in (products[i % len(products)], calls[i % len(calls)])]
        alone = timing.graph(self.device, products, count)
        both = timing.graph(self.device, pairs, 2 * count)
        around = timing.rested(self.device, alone, count), timing.rested(self.device, both, 2 * count)

        def take() -> int:
            without, within = (sample() for sample in around)
            return max(1, 2 * within - without)

        beside = f"{own_ops.BESIDE} x {own_ops.BESIDE}"
        return take, f"graph of {count} calls between products of {beside}, less these alone, {measurements.RESTED}"

    def _in_layer(self, call: build.Closure) -> tuple[Take, str]:
        """What a call adds to the other kernels of a decoder layer (`chip.lab.measure.layer_chain`)."""
        before, after = layer_chain.layer(self.device.torch_device)
        if self.op.WARM:
            before = (*before, *layer_chain.written(call))
        without, within = (*before, *after), (*before, call, *after)
        count = max(LEAST_LAYERS, round(LAYERS_S / (self.call_s + LAYER_S)))
        alone, both = (timing.graph(self.device, calls, count * len(calls)) for calls in (without, within))

        def take() -> int:
            return max(1, round(len(within) * both() - len(without) * alone()))

        return take, f"graph of {count} layers of {len(without)} other calls, less these alone"

    def _coldness(self, context: str) -> str:
        if context in ONE_SET:
            return "one buffer set"
        n, total = len(self.calls), len(self.calls) * self._bytes()
        sets = f"{n} buffer set{'s' if n > 1 else ''} in turn, {total / 2**20:.3g} MiB"
        return sets + ("" if self._cold_enough else f": under {timing.COLD_FACTOR}x the cache")

    @property
    def _cold_enough(self) -> bool:
        return len(self.calls) * self._bytes() >= timing.COLD_FACTOR * self.device.l2_bytes

    def _record(self, context: str, samples: Samples, method: str) -> Measurement:
        seconds = stats.median(samples.samples_ns) * 1e-9
        too_fast = impossible(self.op, seconds, self.device, samples.clock_hz)
        if too_fast:
            return replace(self.blank, context=context, reason=too_fast, method=method)
        flags = list(samples.flags)
        if context in ("cold", "graph") and not self._cold_enough:
            flags.append("buffers fit in cache")
        if context != "hot" and self.op.cost().bytes / seconds > (self.device.bus_bytes_per_s or float("inf")):
            flags.append("faster than the memory bus: partly from cache")
        sensors = self.device.sensors()
        return replace(
            self.blank,
            context=context,
            status="ok",
            samples_ns=samples.samples_ns,
            method=method,
            clock_hz=samples.clock_hz,
            watts=sensors.watts,
            celsius=sensors.celsius,
            flags=tuple(flags),
        )


def impossible(op: Op, seconds: float, device: Device, clock_hz: float | None) -> str:
    """Why a time cannot be true, or nothing: more FLOPs than all SMs do at the highest clock seen."""
    if not op.counted_flops:
        return ""
    dtype = op.compute.removeprefix("matmul_")
    clock = max(clock_hz or 0.0, device.boost_hz or 0.0)
    limit = limits.flop_limit(device.compute_capability, dtype, device.sm_count, clock)
    rate = op.cost().flops / seconds
    if limit and rate > limit * limits.TOLERANCE:
        return (
            f"{rate / 1e12:.4g} TFLOP/s is above the physical limit of {limit / 1e12:.4g}: a fault of the measurement "
            "or of the operator's count"
        )
    return ""


def summary(records: Sequence[Measurement]) -> dict[str, Any]:
    """How many records of each status."""
    return {status: sum(m.status == status for m in records) for status in ("ok", "skipped", "failed")}
