"""When to stop sampling, and what to say about the samples. Pure logic: any clock, any workload, no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from chip.stats import median, median_interval, noise, outliers
from chip.types import ChipError

THROTTLED_BELOW = 0.75  # of the boost clock
DRIFT_OVER = 0.01  # between the medians of the two halves
BIMODAL_OVER = 0.02  # between the medians of the two modes

Take = Callable[[], int]


class Clocked(Protocol):
    """What of a device tells how fast it runs."""

    @property
    def boost_hz(self) -> float | None: ...
    def clock_hz(self) -> float | None: ...


@dataclass(frozen=True)
class StopRule:
    """Stop when the median is known to `noise`, but never before `min_samples` nor past either cap."""

    noise: float = 0.005
    min_samples: int = 10
    max_samples: int = 100
    max_seconds: float = 2.0


DEFAULT_RULE = StopRule()


@dataclass(frozen=True)
class Samples:
    """Every sample taken, in order, and what is to be said about them. Nothing is deleted."""

    samples_ns: tuple[int, ...]
    clocks_hz: tuple[float, ...]
    stopped: str  # "noise": the interval is narrow enough; "samples" or "time": a cap came first
    flags: tuple[str, ...]

    @property
    def stuck(self) -> bool:
        return median(self.samples_ns) <= 0

    @property
    def clock_hz(self) -> float | None:
        return median(self.clocks_hz) if self.clocks_hz else None

    def require_time(self, what: str) -> Samples:
        """Itself, or an error when the clock did not move: no rate can be made of that."""
        if self.stuck:
            raise ChipError(f"{what}: the clock does not move ({len(self.samples_ns)} samples, median 0 ns)")
        return self


def collect(
    take: Take,
    rule: StopRule = DEFAULT_RULE,
    device: Clocked | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Samples:
    """Call `take` (nanoseconds of one run) until the rule says stop; read the device's clock beside each sample."""
    return collect_interleaved({"": take}, rule, device, now)[""]


def collect_interleaved(
    takes: dict[str, Take],
    rule: StopRule = DEFAULT_RULE,
    device: Clocked | None = None,
    now: Callable[[], float] = time.monotonic,
) -> dict[str, Samples]:
    """Sample several variants in turn, in alternating order, so that drift and heat fall on all alike.

    Every variant gets as many samples as the noisiest needs; `max_seconds` is the share of each variant.
    """
    if not takes:
        return {}
    samples: dict[str, list[int]] = {name: [] for name in takes}
    clocks: dict[str, list[float]] = {name: [] for name in takes}
    order = list(takes)
    end = now() + rule.max_seconds * len(takes)
    check_at = max(1, rule.min_samples)
    for count in range(1, max(1, rule.max_samples) + 1):
        for name in order:
            samples[name].append(takes[name]())
            clock = device.clock_hz() if device else None
            if clock is not None:
                clocks[name].append(clock)
        order.reverse()
        stopped = ""
        if count >= check_at:
            check_at = max(count + 1, int(count * 1.1))
            if any(median(s) <= 0 for s in samples.values()):
                stopped = "samples"  # a stuck clock will not come loose; say so and end
            elif all(noise(s) <= rule.noise for s in samples.values()):
                stopped = "noise"
        if not stopped and now() >= end:
            stopped = "time"
        if stopped:
            break
    stopped, boost_hz = stopped or "samples", device.boost_hz if device else None
    flags = {name: flags_of(samples[name], clocks[name], stopped, rule, boost_hz) for name in takes}
    return {name: Samples(tuple(samples[name]), tuple(clocks[name]), stopped, flags[name]) for name in takes}


def flags_of(
    samples: Sequence[int], clocks_hz: Sequence[float], stopped: str, rule: StopRule, boost_hz: float | None
) -> tuple[str, ...]:
    """What a reader should know before trusting the median, one short phrase each."""
    if median(samples) <= 0:
        return (f"stuck clock: {sum(s <= 0 for s in samples)}/{len(samples)} samples of 0 ns",)
    flags = []
    if stopped != "noise" and (reached := noise(samples)) > rule.noise:
        cap = "time cap" if stopped == "time" else "sample cap"
        flags.append(f"{cap} before {rule.noise:.1%}: median known to {reached:.1%}")
    if len(samples) < rule.min_samples:
        flags.append(f"time cap after {len(samples)} of at least {rule.min_samples} samples")
    if boost_hz:
        slow = sum(c < THROTTLED_BELOW * boost_hz for c in clocks_hz)
        if slow:
            flags.append(f"throttled {slow}/{len(clocks_hz)}")
    if far := outliers(samples):
        flags.append(f"outliers {len(far)}/{len(samples)}")
    if (change := drift(samples)) is not None:
        flags.append(f"drift {change:+.1%}")
    if (modes := two_modes(samples)) is not None:
        flags.append(f"bimodal {modes[0]:.0f}/{modes[1]:.0f} ns")
    return tuple(flags)


def drift(samples: Sequence[int]) -> float | None:
    """Relative change from the first half to the second, where their medians' intervals leave a gap."""
    half = len(samples) // 2
    if half < 6:
        return None
    first, second = samples[:half], samples[-half:]
    change = median(second) / median(first) - 1
    (a_low, a_high), (b_low, b_high) = median_interval(first), median_interval(second)
    return change if abs(change) > DRIFT_OVER and (a_high < b_low or b_high < a_low) else None


def two_modes(samples: Sequence[int]) -> tuple[float, float] | None:
    """Medians of two groups, each at least a fifth of the samples, with an empty stretch between them."""
    ordered = sorted(samples)
    n = len(ordered)
    if n < 10:
        return None
    edge = max(2, n // 5)
    cut = max(range(edge, n - edge + 1), key=lambda i: ordered[i] - ordered[i - 1])
    low, high = median(ordered[:cut]), median(ordered[cut:])
    apart = high - low
    gap = ordered[cut] - ordered[cut - 1]
    return (low, high) if apart > BIMODAL_OVER * low and gap > 0.7 * apart else None
