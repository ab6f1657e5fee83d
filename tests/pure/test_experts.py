"""Experts: how many are read, by how much that varies, and which lie apart among the points."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chip.ops.experts import OTHER_TILES, MoeExperts, MoeExpertsComposed


@given(st.integers(1, 64), st.data(), st.integers(1, 300))
def test_experts_read_lie_between_top_k_and_all(experts, data, tokens):
    top_k = data.draw(st.integers(1, experts))
    read = MoeExperts(tokens, 8, 8, experts, top_k).experts_read
    assert top_k - 1e-9 <= read <= min(experts, tokens * top_k) + 1e-9


@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(8, 2, 8), (16, 4, 5), (64, 6, 8)])
def test_how_many_experts_are_read_varies_as_draws_do(experts, top_k, tokens):
    draw = Random(3)
    read = [len({e for _ in range(tokens) for e in draw.sample(range(experts), top_k)}) for _ in range(4000)]
    mean = sum(read) / len(read)
    spread = (sum((n - mean) ** 2 for n in read) / len(read)) ** 0.5
    op = MoeExperts(tokens, 64, 64, experts, top_k)
    assert op.experts_read == pytest.approx(mean, rel=0.01)
    assert op.varies() == pytest.approx(spread / mean, rel=0.06)
    assert MoeExperts(1, 64, 64, experts, top_k).varies() == pytest.approx(0, abs=1e-6)


def test_experts_with_tuned_tiles_lie_apart_where_they_multiply():
    """Of vLLM's own list for an H200: 8 experts of 14336, not of 16384; in bf16 alone, and not as torch runs them."""
    tuned, other = MoeExperts(4096, 4096, 14336, 8, 2), MoeExperts(4096, 4096, 16384, 8, 2)
    assert (tuned.place()[-1], other.place()[-1]) == (OTHER_TILES, 0.0)
    assert replace(tuned, weight_dtype="bf16").place() == tuned.place()
    assert replace(tuned, weight_dtype="fp8").place()[-1] == replace(tuned, tokens=64).place()[-1] == 0.0
    assert replace(tuned, experts=16, ranks=2).place()[-1] == OTHER_TILES, "as many on each GPU"
    assert MoeExpertsComposed(4096, 4096, 14336, 8, 2).place()[-1] == 0.0


def test_experts_read_by_one_and_by_many():
    assert MoeExperts(1, 8, 8, 64, 6).experts_read == pytest.approx(6)
    assert MoeExperts(2, 8, 8, 4, 2).experts_read == 3  # the second token's two: one new on average
    assert MoeExperts(10_000, 8, 8, 64, 6).experts_read == pytest.approx(64)
    assert MoeExperts(7, 8, 8, 4, 4).experts_read == 4
