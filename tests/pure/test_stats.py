"""Order statistics: quantiles as numpy's, intervals that cover what they promise, and three verdicts."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chip import stats

SAMPLES = st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=40)


@given(SAMPLES, st.floats(0, 1))
def test_quantile_is_numpys(samples, q):
    np = pytest.importorskip("numpy")
    assert stats.quantile(samples, q) == pytest.approx(float(np.quantile(samples, q)), rel=1e-9)


@given(SAMPLES)
def test_median_is_the_middle(samples):
    assert stats.median(samples) == pytest.approx(statistics.median(samples))
    low, high = stats.median_interval(samples)
    assert min(samples) <= low <= stats.median(samples) * (1 + 1e-12)
    assert stats.median(samples) <= high * (1 + 1e-12)
    assert high <= max(samples)


def test_no_samples():
    with pytest.raises(ValueError, match="no samples"):
        stats.median([])


def exact_coverage(n, low):
    """Probability that the order statistics low and n - 1 - low (from 0) enclose the median: binomial."""
    return 1 - 2 * sum(math.comb(n, k) for k in range(low + 1)) / 2**n


@pytest.mark.parametrize(("confidence", "least"), [(0.90, 5), (0.95, 6), (0.99, 8)])
def test_interval_covers_at_least_what_it_promises(confidence, least):
    for n in range(max(least, 6), 400):
        ranks = list(range(n))
        low, high = stats.median_interval(ranks, confidence)
        assert high == n - 1 - low
        assert exact_coverage(n, low) >= confidence - 0.002  # of the normal approximation
        assert n < 40 or exact_coverage(n, low + 1) < confidence + 0.01  # and not much wider than it must be


def test_few_samples_give_their_range():
    assert stats.median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert stats.median_interval([7.0]) == (7.0, 7.0)


@pytest.mark.parametrize("n", [8, 15, 40])
def test_coverage_on_skewed_samples(n):
    rng = random.Random(5)
    true_median = math.log(2)  # of the exponential distribution
    inside = 0
    for _ in range(2000):
        low, high = stats.median_interval([rng.expovariate(1) for _ in range(n)])
        inside += low <= true_median <= high
    assert 0.94 <= inside / 2000 <= 0.995


def test_noise_is_the_half_width():
    assert stats.noise([100.0] * 20) == 0
    assert stats.noise([99.0, 100.0, 101.0]) == 0.01
    assert stats.noise([0.0] * 10) == 0


def test_outliers_are_flagged_by_index():
    steady = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2]
    assert stats.outliers(steady) == []
    assert stats.outliers([*steady, 150.0]) == [6]
    assert stats.outliers([*([100.0] * 9), 104.0]) == []  # nothing is known to vary: 1 % of the median counts
    assert stats.outliers([*([100.0] * 9), 106.0]) == [9]


def samples(centre, spread, n=40, seed=1):
    rng = random.Random(seed)
    return [centre + rng.uniform(-spread, spread) for _ in range(n)]


def test_three_verdicts():
    base = samples(100, 1)
    assert stats.compare(base, samples(90, 1, seed=2)).verdict == "faster"
    assert stats.compare(base, samples(110, 1, seed=2)).verdict == "slower"
    assert stats.compare(base, samples(100, 1, seed=2)).verdict == "unclear"


def test_a_difference_within_the_noise_or_the_threshold_is_unclear():
    assert stats.compare(samples(100, 30), samples(97, 30, seed=2)).verdict == "unclear"
    sharp = stats.compare(samples(100, 0.01), samples(99.5, 0.01, seed=2))
    assert sharp.verdict == "unclear"
    assert sharp.high < 1  # surely faster, but by less than 1 %
    assert stats.compare(samples(100, 0.01), samples(99.5, 0.01, seed=2), threshold=0.001).verdict == "faster"


def test_a_verdict_carries_its_evidence():
    v = stats.compare([100.0] * 10, [50.0] * 10)
    assert v == stats.Verdict("faster", 0.5, 0.5, 0.5)


@given(st.lists(st.floats(1, 100), min_size=1, max_size=30), st.lists(st.floats(1, 100), min_size=1, max_size=30))
def test_the_other_way_round_is_the_other_verdict(first, second):
    other = {"faster": "slower", "slower": "faster", "unclear": "unclear"}
    there, back = stats.compare(first, second, 0), stats.compare(second, first, 0)
    assert back.verdict == other[there.verdict]
    assert there.low <= there.ratio * (1 + 1e-12)
    assert there.ratio <= there.high * (1 + 1e-12)
