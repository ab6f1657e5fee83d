"""Times over sequences, queries and keys that never fall, whatever the times at their nodes are."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chip.predict.rising_grid import RisingGrid

SIZES = st.integers(1, 3000)


def noisy(seed):
    """Times that know nothing of sizes."""

    def times(batch, q_len, keys):
        return [(Random(f"{seed} {batch} {q_len} {n}").uniform(1.0, 9.0), 0.1) for n in keys]

    return times


@given(st.integers(0, 99), SIZES, SIZES, SIZES, st.sampled_from([0, 1, 2]), st.sampled_from([1, 7, 300]))
def test_more_never_takes_less(seed, batch, q_len, past, axis, more):
    grid = RisingGrid(noisy(seed))
    sizes = [batch, q_len, q_len + past]
    larger = [size + more * (i == axis) for i, size in enumerate(sizes)]
    larger[2] = max(larger[1:])
    assert grid(*larger)[0] >= grid(*sizes)[0] * (1 - 1e-12)


@given(SIZES, SIZES, st.integers(0, 3000))
def test_what_is_a_product_of_powers_stays_one(batch, q_len, past):
    def times(b, q, keys):
        return [(b * q**0.5 * n**1.5, 0.1) for n in keys]

    sizes = batch, q_len, q_len + past
    assert RisingGrid(times)(*sizes)[0] == pytest.approx(batch * q_len**0.5 * (q_len + past) ** 1.5, rel=1e-9)


def test_it_does_not_matter_what_was_asked_before():
    asked = [(1, 1, 1), (3, 17, 400), (64, 65, 65), (5, 1, 70_000), (2, 300, 300)]
    fresh = [RisingGrid(noisy(1))(*sizes) for sizes in asked]
    grid = RisingGrid(noisy(1))
    assert [grid(*sizes) for sizes in reversed(asked)] == fresh[::-1]
