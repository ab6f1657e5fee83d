"""The bench a probe works on: the device, its budget, what was found before, and the making of intervals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from chip.lab.measure import limits
from chip.lab.measure.budget import Budget
from chip.lab.measure.device import Device
from chip.lab.measure.energy import EnergyProbe
from chip.lab.measure.journal import Outcome
from chip.lab.measure.stopping import Samples, StopRule, Take, collect, collect_interleaved
from chip.lab.measure.timing import Call, events, inner_for, rested, warm_up
from chip.stats import median, median_interval
from chip.types import Ceiling, HardwareSpec

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SHARE_OF_FREE = 1 / 8  # one big buffer


class Skip(Exception):
    """A case that does not apply here, and why."""


@dataclass(frozen=True)
class ProbeCase:
    """One resumable piece of work: `covers` names what it gives, for the list of what is missing when it fails."""

    name: str
    covers: tuple[str, ...]
    seconds: float  # expected, for the time left
    measure: Callable[[Bench], Outcome]


@dataclass
class Bench:
    device: Device
    budget: Budget
    energy: EnergyProbe
    spec: HardwareSpec | None = None
    found: Outcome = field(default_factory=Outcome)
    time_scale: float = 1.0  # below 1 when the budget runs short: every cap on sampling time shrinks with it
    _buffers: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    # -- data ---------------------------------------------------------------------------------------------------------
    def normal(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Random normal data: zeros draw less power and so run faster. On a CPU one block of it is repeated."""
        device = self.device.torch_device
        count = 1
        for n in shape:
            count *= n
        block = min(count, 2**22) if device.type == "cpu" else count
        source = torch.randn(block, device=device, dtype=dtype)
        if block == count:
            return source.view(shape)
        out = torch.empty(count, device=device, dtype=dtype)
        for start in range(0, count, block):
            out[start : start + block].copy_(source[: min(block, count - start)])
        return out.view(shape)

    def buffer_bytes(self, wanted: int | None = None) -> int:
        """Size of one big buffer: as budgeted, less where memory is short, a whole number of MiB."""
        buffered = sum(t.numel() * t.element_size() for t in self._buffers.values())
        free = self.device.free_bytes() + buffered
        return max(1, int(min(wanted or self.budget.buffer_bytes, free * SHARE_OF_FREE)) >> 20) << 20

    def buffer(self, index: int, size_bytes: int) -> torch.Tensor:
        """The index-th big random fp32 buffer, kept until `release`."""
        key = (index, size_bytes)
        if key not in self._buffers:
            self._buffers[key] = self.normal((size_bytes // 4,), torch.float32)
        return self._buffers[key]

    def release(self) -> None:
        self._buffers.clear()
        self.device.empty_cache()

    # -- samples ------------------------------------------------------------------------------------------------------
    def collect(self, take: Take, rule: StopRule | None = None) -> Samples:
        return collect(take, self._within_budget(rule), self.device).require_time("timer")

    def _within_budget(self, rule: StopRule | None) -> StopRule:
        wanted = rule or self.budget.rule
        return replace(wanted, max_seconds=wanted.max_seconds * self.time_scale)

    def best_of(self, variants: dict[str, Call]) -> tuple[str, dict[str, Samples]]:
        """Sample several ways to do the same, in turn and rested: a stream of random data at full rate is itself enough
        to reach the power limit of some GPUs. The name of the fastest, and all samples."""
        takes = {}
        for name, call in variants.items():
            warm_up(self.device, call, self.budget.warm_s / len(variants))
            inner = inner_for(self.device, [call], self.budget.sample_s)
            takes[name] = rested(self.device, events(self.device, [call], inner), inner)
        samples = collect_interleaved(takes, self._within_budget(None), self.device)
        samples = {name: one.require_time(name) for name, one in samples.items()}
        return min(samples, key=lambda n: median(samples[n].samples_ns)), samples

    # -- numbers ------------------------------------------------------------------------------------------------------
    def rate(self, samples: Samples, work: float, unit: str, method: str) -> Ceiling:
        """Work per second: `work` is what one sample did."""
        return self._ceiling([work / (ns * 1e-9) for ns in samples.samples_ns if ns > 0], samples, unit, method)

    def seconds(self, samples: Samples, method: str) -> Ceiling:
        return self._ceiling([ns * 1e-9 for ns in samples.samples_ns], samples, "s", method)

    def _ceiling(self, values: list[float], samples: Samples, unit: str, method: str) -> Ceiling:
        now = self.device.sensors()
        return ceiling(values, unit, method, samples.clock_hz, now.watts, now.celsius, samples.flags)

    def need(self, name: str) -> Ceiling:
        """A ceiling that an earlier case gave."""
        if name not in self.found.ceilings:
            raise Skip(f"needs {name}, which is missing: {self.found.missing.get(name, 'not measured')}")
        return self.found.ceilings[name]

    # -- limits -------------------------------------------------------------------------------------------------------
    def check_compute(self, dtype: str, c: Ceiling, clocks_hz: tuple[float, ...]) -> Ceiling:
        d = self.device
        clock_hz = max(clocks_hz, default=d.boost_hz)
        limit = limits.flop_limit(d.compute_capability, dtype, d.sm_count, clock_hz)
        return limits.check_compute(c, limit, f"{d.sm_count} {d.sm_word} at {(clock_hz or 0) / 1e9:.3g} GHz")

    def check_memory(self, c: Ceiling) -> Ceiling:
        if self.spec is not None:
            return limits.check_memory(c, self.spec.ceilings["hbm"].value, f"datasheet of {self.spec.title}")
        return limits.check_memory(c, self.device.bus_bytes_per_s, "memory clock x bus width")


def ceiling(
    values: list[float],
    unit: str,
    method: str,
    clock_hz: float | None = None,
    watts: float | None = None,
    celsius: float | None = None,
    flags: tuple[str, ...] = (),
) -> Ceiling:
    """Median and its interval, with every sample."""
    low, high = median_interval(values)
    samples = tuple(float(f"{v:.6g}") for v in values)
    return Ceiling(median(values), low, high, unit, method, samples, clock_hz, watts, celsius, flags)


def ratio(realistic: Ceiling, ideal: Ceiling, method: str) -> Ceiling:
    """A calibration factor: realistic / ideal, with the worst of both intervals."""
    low, high = realistic.low / ideal.high, realistic.high / ideal.low
    shares = tuple(float(f"{s / ideal.value:.6g}") for s in realistic.samples)
    value = realistic.value / ideal.value
    return replace(realistic, value=value, low=low, high=high, unit="1", method=method, samples=shares)
