"""The timer's logic on clocks we wind ourselves: noisy, drifting, bimodal, stuck, throttled."""

import random
from itertools import count, cycle
from types import SimpleNamespace

import pytest

from chip.lab.measure.stopping import Samples, StopRule, collect, collect_interleaved
from chip.types import ChipError


class Clock:
    """A clock that moves only when work is done on it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    def work(self, durations_ns):
        durations = iter(durations_ns)

        def take() -> int:
            ns = next(durations)
            self.now_s += ns * 1e-9
            return ns

        return take


def noisy(share: float, seed: int = 0, around: int = 1_000_000):
    rng = random.Random(seed)
    return (round(rng.gauss(around, share * around)) for _ in count())


def test_a_quiet_clock_stops_at_the_least_number_of_samples():
    clock = Clock()
    found = collect(clock.work(cycle([1_000_000])), StopRule(min_samples=10), now=clock.now)
    assert (len(found.samples_ns), found.stopped, found.flags) == (10, "noise", ())


def test_a_noisy_clock_takes_more_samples_until_the_median_is_known():
    clock = Clock()
    found = collect(clock.work(noisy(0.01)), StopRule(noise=0.005, max_samples=1000, max_seconds=100), now=clock.now)
    assert found.stopped == "noise"
    assert 10 < len(found.samples_ns) < 200


def test_the_sample_cap_is_said_with_what_was_reached():
    clock = Clock()
    found = collect(clock.work(noisy(0.2)), StopRule(max_samples=20, max_seconds=100), now=clock.now)
    assert (len(found.samples_ns), found.stopped) == (20, "samples")
    assert found.flags[0].startswith("sample cap before 0.5%: median known to ")


def test_the_time_cap_ends_slow_work_and_says_so():
    clock = Clock()
    found = collect(clock.work(cycle([900_000_000])), StopRule(max_seconds=2.0), now=clock.now)
    assert (len(found.samples_ns), found.stopped) == (3, "time")
    assert found.flags == ("time cap after 3 of at least 10 samples",)


def test_a_drifting_clock_is_flagged():
    clock = Clock()
    found = collect(clock.work(1_000_000 + 5_000 * i for i in count()), StopRule(max_samples=40), now=clock.now)
    assert any(f.startswith("drift +") for f in found.flags)
    assert len(found.samples_ns) == 40


def test_a_bimodal_clock_is_flagged_and_keeps_both_modes():
    clock = Clock()
    found = collect(
        clock.work(cycle([1_000_000, 1_001_000, 1_300_000, 1_301_000])), StopRule(max_samples=40), now=clock.now
    )
    assert any(f.startswith("bimodal 1000") for f in found.flags)
    assert {1_000_000, 1_301_000} <= set(found.samples_ns)


def test_ordinary_noise_is_neither_drift_nor_bimodal():
    for seed in range(50):
        clock = Clock()
        found = collect(clock.work(noisy(0.03, seed)), StopRule(max_samples=40, max_seconds=9), now=clock.now)
        assert not any(f.startswith(("bimodal", "drift")) for f in found.flags), (seed, found.flags)


@pytest.mark.parametrize("value", [0, -5])
def test_a_stuck_clock_ends_is_flagged_and_gives_no_rate(value):
    found = collect(lambda: value, StopRule(max_samples=10**9), now=lambda: 0.0)
    assert len(found.samples_ns) == 10
    assert found.flags == ("stuck clock: 10/10 samples of 0 ns",)
    with pytest.raises(ChipError, match="the clock does not move"):
        found.require_time("copy")


def test_a_stuck_host_clock_ends_at_the_sample_cap():
    found = collect(iter(noisy(0.5)).__next__, StopRule(max_samples=50), now=lambda: 0.0)
    assert (len(found.samples_ns), found.stopped) == (50, "samples")


def test_outliers_are_flagged_and_kept():
    clock = Clock()
    found = collect(clock.work(cycle([1_000_000] * 9 + [5_000_000])), StopRule(), now=clock.now)
    assert "outliers 1/10" in found.flags
    assert 5_000_000 in found.samples_ns


def test_samples_under_three_quarters_of_boost_are_throttled():
    clock, hz = Clock(), iter([1.98e9, 1.4e9, 1.5e9] + [1.9e9] * 7)
    device = SimpleNamespace(clock_hz=lambda: next(hz), boost_hz=1.98e9)
    found = collect(clock.work(cycle([1_000_000])), StopRule(), device, clock.now)
    assert found.flags == ("throttled 1/10",)  # 1.5 is 76 %
    assert found.clock_hz == 1.9e9


def test_unreadable_clocks_are_left_out():
    found = collect(lambda: 1000, StopRule(), SimpleNamespace(clock_hz=lambda: None, boost_hz=1e9))
    assert (found.clocks_hz, found.clock_hz, found.flags) == ((), None, ())


def test_interleaved_variants_alternate_and_see_the_same_drift():
    clock, order = Clock(), []
    slowly = (1_000_000 + 1_000 * i for i in count())

    def variant(name):
        def take():
            order.append(name)
            clock.now_s += 1e-3
            return next(slowly)

        return take

    found = collect_interleaved({"a": variant("a"), "b": variant("b")}, StopRule(min_samples=20), now=clock.now)
    assert order[:6] == ["a", "b", "b", "a", "a", "b"]
    assert len(found["a"].samples_ns) == len(found["b"].samples_ns)
    assert abs(sum(found["a"].samples_ns) / sum(found["b"].samples_ns) - 1) < 1e-3


def test_no_variants_is_no_work():
    assert collect_interleaved({}) == {}


def test_samples_are_values():
    assert Samples((1,), (), "noise", ()) == Samples((1,), (), "noise", ())
