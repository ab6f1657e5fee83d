"""Curves read back: the knee and the staircase of synthetic data, energy of synthetic meters, physical limits."""

import math
import random

import pytest

from chip.lab.measure.curve_shapes import find_knee, fit_staircase
from chip.lab.measure.energy import NoProbe, NotAvailable, SampledProbe, joules_by_counter, joules_by_power, rapl_joules
from chip.lab.measure.limits import AboveLimit, check_compute, check_memory, flop_limit
from chip.types import Ceiling

SIZES = [2**18 * 2 ** (i / 2) for i in range(29)]


def curve(knee, upper, lower, noise=0.0, seed=0):
    """Cache up to the knee; beyond it a growing share misses."""
    rng = random.Random(seed)
    hit = [min(1.0, (knee / s) ** 2) for s in SIZES]
    return [(1 + rng.uniform(-noise, noise)) / (h / upper + (1 - h) / lower) for h in hit]


@pytest.mark.parametrize("knee", [8 * 2**20, 44 * 2**20, 200 * 2**20])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_knee_is_found_near_where_it_was_put(knee, noise):
    found = find_knee(SIZES, curve(knee, 9.7e12, 4.2e12, noise))
    assert found is not None
    assert found.low <= found.at <= found.high
    assert knee / 1.5 < found.at < knee * 1.5


def test_the_ramp_of_small_sets_does_not_hide_the_knee():
    y = [v * min(1, 0.3 + i / 6) for i, v in enumerate(curve(44 * 2**20, 9.7e12, 4.2e12))]
    found = find_knee(SIZES, y)
    assert found is not None
    assert 30 * 2**20 < found.at < 66 * 2**20


def test_a_flat_curve_a_short_one_and_a_rising_one_have_no_knee():
    assert find_knee(SIZES, [4e12] * len(SIZES)) is None
    assert find_knee(SIZES[:3], [9e12, 9e12, 4e12]) is None
    assert find_knee(SIZES, [1e12 * (i + 1) for i in range(len(SIZES))]) is None


def test_the_staircase_is_fitted():
    tiles = list(range(8, 660, 8))
    times = [3e-6 + 2e-5 * math.ceil(t / 264) for t in tiles]
    fit = fit_staircase(tiles, times, range(66, 529))
    assert math.ceil(264 / 8) * 8 - 8 < fit.tiles_per_wave <= 264
    assert fit.per_wave == pytest.approx(2e-5)
    assert fit.ramp == pytest.approx(3e-6)
    assert fit.explained == pytest.approx(1.0)


def rate(value, unit="FLOP/s"):
    return Ceiling(value, value, value, unit, "")


def test_rates_above_the_physical_limit_are_errors():
    limit = flop_limit("9.0", "bf16", 132, 1.98e9)
    assert limit == pytest.approx(1070.5e12, rel=1e-3)
    assert check_compute(rate(800e12), limit, "").value == 800e12
    with pytest.raises(AboveLimit, match="1200 TFLOP/s is above the physical limit 1071"):
        check_compute(rate(1200e12), limit, "132 units at 1.98 GHz")
    with pytest.raises(AboveLimit, match=r"4\.9 TB/s is above the memory's limit 4\.8"):
        check_memory(rate(4.9e12, "B/s"), 4.8e12, "datasheet")


def test_an_unknown_architecture_or_clock_has_no_limit():
    assert flop_limit("99.0", "bf16", 132, 2e9) is None
    assert flop_limit("9.0", "bf16", 132, None) is None
    assert flop_limit(None, "fp32", 2, 3e9) is None
    assert check_compute(rate(1e20), None, "").value == 1e20


def test_a_counter_of_ticks_gives_the_rate_between_ticks():
    readings = [(t / 100, 500 * math.floor(t / 10) / 10) for t in range(105)]  # 500 W, a tick each 0.1 s
    assert joules_by_counter(readings, 1.0) == pytest.approx(500, rel=1e-6)
    assert joules_by_counter(readings[:5], 1.0) is None


def test_power_is_integrated():
    assert joules_by_power([(0, 100.0), (1, 300.0), (2, 300.0)], 2.0) == pytest.approx(500)
    assert joules_by_power([(0, 100.0)], 1.0) is None


def test_a_probe_without_readings_says_so():
    probe = SampledProbe("meter", lambda: None, None)
    probe.start()
    assert probe.stop() == NotAvailable("meter gives neither an energy counter nor watts")
    assert NoProbe("no meter").stop() == NotAvailable("no meter")


def test_rapl_undoes_the_counters_wrap(tmp_path):
    package = tmp_path / "intel-rapl:0"
    package.mkdir()
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of the package: not counted twice
    (package / "energy_uj").write_text("9000000\n")
    (package / "max_energy_range_uj").write_text("10000000\n")
    read = rapl_joules(tmp_path)
    assert read is not None
    (package / "energy_uj").write_text("1000000\n")
    assert read() == pytest.approx(2.0)
    assert rapl_joules(tmp_path / "none") is None
