"""Times over two sizes that never fall, whatever the times at their nodes are."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chip.predict.rising_grid import COARSE, EDGES, FINE, LENGTHS, RisingGrid

SIZES = st.integers(1, 3000)
POWERS = st.sampled_from([1 << i for i in range(12)])


def noisy(seed):
    """Times that know nothing of sizes."""

    def times(count, lengths):
        return [(Random(f"{seed} {count} {n}").uniform(1.0, 9.0), 0.1) for n in lengths]

    return times


@given(st.integers(0, 99), SIZES, SIZES, st.sampled_from([0, 1]), st.sampled_from([1, 7, 300]))
def test_more_never_takes_less(seed, count, length, axis, more):
    grid = RisingGrid(noisy(seed))
    larger = (count + more, length) if axis == 0 else (count, length + more)
    assert grid(*larger)[0] >= grid(count, length)[0] * (1 - 1e-12)


@given(SIZES, SIZES)
def test_what_grows_straight_along_both_sizes_stays_as_it_is(count, length):
    def times(of, lengths):
        return [(of * (3 + n), 0.1) for n in lengths]

    assert RisingGrid(times)(count, length)[0] == pytest.approx(count * (3 + length), rel=1e-9)


@given(POWERS, st.sampled_from(EDGES[:7]))
def test_powers_of_two_and_edges_are_as_they_were_measured(count, length):
    """What lies between them raises none, where they rise themselves."""
    assert RisingGrid(falling_between)(count, length)[0] == pytest.approx(count * length)


def falling_between(count, lengths):
    """Between powers of two anything up to twice as long."""
    return [
        (count * n * (1 if _power(count) and _power(n) else 1 + (count * 7 + n * 5) % 11 / 11), 0.1) for n in lengths
    ]


def _power(size):
    return size & (size - 1) == 0


def test_it_does_not_matter_what_was_asked_before():
    asked = [(1, 1), (3, 400), (64, 65), (5, 70_000), (2, 300)]
    fresh = [RisingGrid(noisy(1))(*sizes) for sizes in asked]
    grid = RisingGrid(noisy(1))
    assert [grid(*sizes) for sizes in reversed(asked)] == fresh[::-1]


def test_nodes_hold_every_power_of_two():
    for k in range(20):
        assert 1 << k in COARSE
        assert 1 << k in FINE
        assert 1 << k in LENGTHS
    assert EDGES[:4] == [1, 64, 128, 256]
    assert {64, 65, 80, 81, 129} <= {*LENGTHS}
