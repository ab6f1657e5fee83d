"""Joules of short work by a counter that moves ten times a second: on a clock and a GPU of our own."""

from types import SimpleNamespace

import pytest

from chip.lab.measure import energy
from chip.lab.measure.energy import EnergyReading, SampledProbe, each, idle_watts

IDLE_W = 120.0
STEP_S, TICK = 0.01, 10  # the counter moves at every tenth step, and tells what was drawn until five steps before


class Gpu:
    """Draws what it is told to; its counter and its power reading move in ticks, as NVML's do."""

    def __init__(self, offset):
        self.steps, self.drawn, self.late, self.shown, self.power = offset, 0.0, 0.0, 0.0, IDLE_W

    def spend(self, seconds, watts):
        for _ in range(round(seconds / STEP_S)):
            if self.steps % TICK == 0:
                self.shown, self.power = self.late, watts
            if self.steps % TICK == TICK // 2:
                self.late = self.drawn
            self.steps += 1
            self.drawn += watts * STEP_S

    def clock(self):
        return SimpleNamespace(monotonic=lambda: self.steps * STEP_S, sleep=lambda s: self.spend(s, IDLE_W))


def meter(monkeypatch, offset=0, joules=True):
    gpu = Gpu(offset)
    monkeypatch.setattr(energy, "time", gpu.clock())
    monkeypatch.setattr(SampledProbe, "_run", lambda self: None)  # `work` reads it instead, on the same clock
    return gpu, SampledProbe("NVML", (lambda: gpu.shown) if joules else None, lambda: gpu.power)


def request(gpu, probe, prefill_s, decode_s):
    """700 W for a while, then 350 W: not a steady load."""

    def work():
        for seconds, watts in ((prefill_s, 700.0), (decode_s, 350.0)):
            for _ in range(round(seconds / STEP_S)):
                gpu.spend(STEP_S, watts)
                probe.poll()

    return work, 700 * prefill_s + 350 * decode_s


@pytest.mark.parametrize("offset", range(0, TICK, 3))
@pytest.mark.parametrize(("prefill_s", "decode_s"), [(0.01, 0.02), (0.03, 0.07), (0.36, 0.2)])
def test_a_short_stretch_is_exact_wherever_the_ticks_fall(monkeypatch, offset, prefill_s, decode_s):
    gpu, probe = meter(monkeypatch, offset)
    work, joules = request(gpu, probe, prefill_s, decode_s)
    found = each(probe, work, 0.4, IDLE_W)
    assert isinstance(found, EnergyReading)
    assert found.seconds == pytest.approx(prefill_s + decode_s)
    assert found.joules == pytest.approx(joules, rel=0.02)  # a step of idling more or less
    assert found.cross_check_joules is None
    assert found.flags == ("energy counter not checked by power: under 1 s of work",)


@pytest.mark.parametrize("offset", range(0, TICK, 3))
def test_a_longer_one_is_checked_by_power(monkeypatch, offset):
    gpu, probe = meter(monkeypatch, offset)
    work, joules = request(gpu, probe, 0.01, 0.19)
    found = each(probe, work, 2.0, IDLE_W)
    assert found.joules == pytest.approx(joules, rel=0.01)
    assert found.cross_check_joules == pytest.approx(joules, rel=0.1)
    assert found.flags == ()


def test_the_wait_for_ticks_is_short(monkeypatch):
    gpu, probe = meter(monkeypatch)
    work, _ = request(gpu, probe, 0.01, 0.03)
    each(probe, work, 0.4, IDLE_W)
    assert gpu.steps * STEP_S <= 0.04 + 0.2 + 0.4 + 0.2 + 4 * STEP_S


def test_a_counter_that_stands_still_and_none_at_all_leave_it_to_power(monkeypatch):
    for joules in (True, False):
        gpu, probe = meter(monkeypatch, joules=joules)
        monkeypatch.setattr(gpu, "shown", 5.0)
        spend = gpu.spend
        monkeypatch.setattr(gpu, "spend", lambda s, w, gpu=gpu, spend=spend: (spend(s, w), setattr(gpu, "shown", 5.0)))
        work, _ = request(gpu, probe, 0.0, 0.1)
        found = each(probe, work, 1.0, IDLE_W)
        assert "power, integrated" in found.method
        assert found.joules == pytest.approx(35, rel=0.15)


def test_idle_power_is_a_steady_load(monkeypatch):
    gpu, probe = meter(monkeypatch)

    def sleep(seconds):
        for _ in range(round(seconds / STEP_S)):
            gpu.spend(STEP_S, IDLE_W)
            probe.poll()

    monkeypatch.setattr(energy.time, "sleep", sleep)
    assert idle_watts(probe) == pytest.approx(IDLE_W)
