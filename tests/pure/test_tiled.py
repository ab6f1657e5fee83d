"""The base of FlashAttention-3 and cuDNN attention: by hand, what more work may never do, and where stairs are left."""

from dataclasses import replace
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chip import hardware, ops
from chip.predict import tiled
from chip.predict.estimator import read_tables
from chip.predict.tiled import MOST_SPLITS, Tiled

UNITS, FLOPS, BYTES = 100, 1e14, 1e12
PLAIN = Tiled(True, 0.0, 0.0, odd_heads=2.0, small_heads=0.5, middle_heads=1.0, large_heads=1.0, imbalance=1.0)
BUNDLED = {t.implementation: t for t in read_tables(hardware.find("h200").tables).operators if t.base.tiled}
STAIR = 0.11  # by so much a decode step falls where its keys are first split; meant: by nothing


def attention(**axes):
    settings = {"batch": 1, "heads": 32, "kv_heads": 8, "head_dim": 128, "q_len": 1, "kv_len": 1024}
    return ops.build("attention", {**settings, **axes})


def seconds(op, t=PLAIN, flops=FLOPS, moving=BYTES):
    return tiled.seconds(op, UNITS, t, flops, moving)


SHAPES = st.builds(
    lambda batch, kv_heads, group, head_dim, q_len, past: attention(
        batch=batch, kv_heads=kv_heads, heads=kv_heads * group, head_dim=head_dim, q_len=q_len, kv_len=q_len + past
    ),
    st.integers(1, 300),
    st.sampled_from([1, 2, 4, 8, 32]),
    st.sampled_from([1, 2, 4, 7, 8]),
    st.sampled_from([64, 80, 96, 128, 256]),
    st.just(1) | st.integers(2, 4096),
    st.integers(0, 20_000),
)
RATES = [st.floats(0.5, 1)] * 3
TILINGS = st.builds(
    Tiled, st.booleans(), st.floats(0, 1e-5), st.floats(0, 200), st.floats(1, 2), *RATES, st.floats(0, 1)
)


# --- by hand
def test_a_decode_step_that_fills_the_gpu_streams_its_cache():
    """Far more tiles than units: all keys and values, queries and outputs, at the bandwidth."""
    op = attention(batch=1000, kv_len=4096)
    moved = 2 * 2 * 128 * 1000 * (4096 * 8 + 32)
    assert seconds(op, replace(PLAIN, imbalance=0.0), flops=1e18) == pytest.approx(moved / BYTES, rel=0.13)
    assert seconds(op, replace(PLAIN, imbalance=0.0), flops=1e18) > moved / BYTES


def test_a_long_prefill_is_its_tiles():
    """8 groups of heads, each of 4 x 64 tiles of 128 queries of any head, through half of the keys and their own."""
    op = attention(q_len=8192, kv_len=8192)
    tile_s = 4 * 128 * 128 * (4096 + (32 + 128) / 2) / (FLOPS / UNITS)
    waves = 8 * 4 * 64 / UNITS
    assert seconds(op, moving=1e18) == pytest.approx(ceil(waves) * tile_s)
    assert seconds(op, replace(PLAIN, imbalance=0.5), moving=1e18) == pytest.approx((waves + ceil(waves)) / 2 * tile_s)
    started = replace(PLAIN, tile_s=1e-3)
    assert seconds(op, started, moving=1e18) == pytest.approx(ceil(waves) * (tile_s + 1e-3))


def test_heads_share_tiles_only_where_queries_are_packed():
    """14 queries of 7 heads fill 98 rows of one tile, or a tile for each head."""
    op = attention(heads=14, kv_heads=2, q_len=14)
    assert tiled.tiles(op, packs=True) == (2, 128)
    assert tiled.tiles(op, packs=False) == (14, 128)
    assert tiled.tiles(replace(op, head_dim=64), packs=True) == (2, 192)
    assert tiled.tiles(replace(op, q_len=1), packs=True) == tiled.tiles(replace(op, q_len=1), packs=False) == (2, 64)


def test_heads_of_other_sizes_are_padded_and_small_ones_slower():
    long = {"q_len": 8192, "kv_len": 8192}
    whole, padded, small = (seconds(attention(head_dim=d, **long), moving=1e18) for d in (128, 96, 64))
    assert padded == pytest.approx(2 * whole * 96 / 128, rel=0.05)  # in 1366 tiles of 192 queries
    assert small == pytest.approx(whole / 0.5 * 64 / 128, rel=0.05)


@pytest.mark.parametrize(
    ("axes", "splits"),
    [
        ({"batch": 1}, 8),  # 1024 keys in parts of 128
        ({"batch": 1, "kv_len": 1100}, 8.59375),  # no steps: kernels differ in where theirs are
        ({"batch": 1, "kv_len": 100_000}, 12),  # 8 tiles: 12 of each fill 100 units
        ({"batch": 1, "kv_heads": 1, "kv_len": 100_000}, MOST_SPLITS),
        ({"batch": 13}, 1),  # 104 tiles
        ({"batch": 1, "kv_len": 128}, 1),
    ],
)
def test_splits(axes, splits):
    """Told by what going through the keys takes when nothing else costs, next to a device of one unit as fast."""
    op = attention(**axes)
    key_s = 4 * 64 * 128 / (1e12 / UNITS)
    waves = ceil(max(1, op.batch * op.kv_heads * splits / UNITS))
    assert seconds(op, flops=1e12, moving=1e18) == pytest.approx(waves * key_s * op.kv_len / splits)


# --- never
@given(SHAPES, TILINGS)
def test_no_faster_than_memory(op, t):
    assert seconds(op, t) >= op.cost().bytes / BYTES * (1 - 1e-9)


@given(SHAPES, TILINGS, st.integers(1, 5000))
def test_more_keys_never_take_less_than_half_with_splits(op, t, more):
    """A split more leaves each at least half as long."""
    assert seconds(replace(op, kv_len=op.kv_len + more), t) >= 0.5 * seconds(op, t)


@given(SHAPES, TILINGS, st.integers(1, 300))
def test_more_batch_never_takes_less_time(op, t, more):
    assert seconds(replace(op, batch=op.batch + more), t) >= seconds(op, t) * (1 - 1e-12)


@given(SHAPES, TILINGS)
def test_a_faster_gpu_is_never_slower(op, t):
    assert seconds(op, t, flops=2 * FLOPS) <= seconds(op, t)
    assert seconds(op, t, moving=2 * BYTES) <= seconds(op, t)
    assert seconds(op, t, flops=2 * FLOPS, moving=2 * BYTES) <= seconds(op, t)


@given(SHAPES, st.booleans())
def test_features_are_as_many_as_said(op, packs):
    assert len(tiled.features(op, packs, 1e-6)) == tiled.FEATURES


# --- as fitted
@pytest.mark.parametrize("implementation", BUNDLED)
def test_bundled_bases_rise(implementation):
    """With the context but for the stair of the first split, and with the batch but for half a per cent (an imbalance
    fitted a little above 1)."""
    table = BUNDLED[implementation]
    units = hardware.find("h200").profile.units
    lengths = sorted({round(33 * 1.03**i) for i in range(230)})
    long = next(i for i, n in enumerate(lengths) if n > MOST_SPLITS * tiled.KEY_BLOCK)
    assert len(lengths) - long > 30
    for q_len in (1, 128, 2048):
        for batch, kv_heads in ((1, 8), (4, 2), (64, 8), (16, 32)):
            times = [
                table.base.seconds(op, op.cost(), units)
                for op in (attention(q_len=q_len, kv_len=q_len + n, batch=batch, kv_heads=kv_heads) for n in lengths)
            ]
            assert all(b >= (1 - STAIR) * a for a, b in pairwise(times))
            assert times[long:] == sorted(times[long:]), "no more splits there"
        ops_of = [attention(q_len=q_len, kv_len=q_len + 1000, batch=b) for b in range(1, 200)]
        times = [table.base.seconds(op, op.cost(), units) for op in ops_of]
        assert all(b >= 0.995 * a for a, b in pairwise(times))
