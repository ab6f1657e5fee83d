"""Attention: visible pairs, chunks, windows and key heads in its FLOPs and bytes."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from chip.ops.attention import Attention, visible_keys, visible_pairs
from chip.ops.collectives import AllReduce
from chip.ops.composed import AlibiAttention
from chip.ops.latent import Mla
from chip.ops.linear import Linear
from chip.types import Seq

PAIRS = st.tuples(st.integers(0, 60), st.integers(1, 40), st.integers(0, 30))  # past, new, window


@given(PAIRS)
def test_visible_pairs_are_those_of_a_mask(shape):
    past, new, window = shape
    kv = past + new
    mask = [
        [key <= past + query and (not window or key > past + query - window) for key in range(kv)]
        for query in range(new)
    ]
    assert visible_pairs(new, kv, True, window) == sum(map(sum, mask))
    assert visible_keys(new, kv, True, window) == sum(map(any, zip(*mask)))
    assert visible_pairs(new, kv, False, 0) == new * kv


@given(PAIRS, st.lists(st.integers(1, 15), max_size=8))
def test_a_prefill_is_its_decode_steps_and_any_chunks(shape, cuts):
    past, new, window = shape
    for whole in (Attention(3, 4, 2, 8, 1, 1, True, window), Attention(3, 4, 4, 8, 1, 1, True, window, 6)):

        def flops(n, before, one=whole):
            return one.over(Seq(n, before, 3)).cost().flops

        assert flops(new, past) == sum(flops(1, past + i) for i in range(new))
        chunked, done = 0, 0
        for size in [*cuts, new]:
            size = min(size, new - done)
            if size:
                chunked += flops(size, past + done)
                done += size
        assert flops(new, past) == chunked


@given(st.integers(0, 60), st.integers(1, 40))
def test_latent_attention_is_its_decode_steps(past, new):
    one = Mla(2, 4, 1, 24, 1, 1, v_head_dim=16)
    steps = [one.over(Seq(1, past + i, 2)).cost().flops for i in range(new)]
    assert one.over(Seq(new, past, 2)).cost().flops == sum(steps)


def test_fewer_key_heads_read_fewer_bytes_for_the_same_flops():
    many, grouped, single = (Attention(1, 32, kv, 128, 1, 4096).cost() for kv in (32, 8, 1))
    assert many.flops == grouped.flops == single.flops == 2 * 32 * 4096 * 256
    queries = 2 * 32 * 128
    assert many.read_bytes - queries == 2 * 4096 * 32 * 256
    assert grouped.read_bytes - queries == 2 * 4096 * 8 * 256
    assert single.read_bytes - queries == 2 * 4096 * 1 * 256


def test_a_window_bounds_what_is_read():
    at = [Attention(1, 8, 8, 64, 1, kv, True, 100).cost() for kv in (99, 100, 101, 5000)]
    assert at[0].flops < at[1].flops
    assert at[1] == at[2] == at[3]
    assert Attention(1, 8, 8, 64, 10, 5000, True, 100).cost().read_bytes == 2 * 8 * (10 * 64 + 109 * 128)


def test_latent_cache_is_shared_by_all_heads():
    one, many = (Mla(1, heads, 1, 576, 1, 1000, v_head_dim=512).cost() for heads in (1, 128))
    assert many.flops == 128 * one.flops
    assert many.read_bytes - one.read_bytes == 2 * 127 * 576  # queries only


def test_a_window_bounds_what_is_read_of_a_latent():
    one = Mla(1, 16, 1, 576, 1, 5000, True, 100, 512)
    assert one.cost().read_bytes == 2 * 576 * (16 + 100)


def test_counted_flops_are_dense():
    assert Attention(2, 8, 8, 64, 10, 10).counted_flops == 2 * 2 * 8 * 10 * 10 * 128
    assert Linear(2, 3, 4, bias=True).counted_flops == 48
    assert AllReduce(2, 3, 4).counted_flops == 0


def test_lengths_of_three_kinds_and_how_often_a_growing_context_has_them():
    """Attention of several kernels: keys in eights, other even and odd numbers of them take other products."""
    one = AlibiAttention(1, 32, 32, 64, 1, 1001)
    kinds = [replace(one, kv_len=n).place()[-1] for n in range(1000, 1016)]
    assert kinds[:8] == kinds[8:]
    assert (len(set(kinds)), len(set(kinds[1::2])), len({kinds[2], kinds[4], kinds[6]})) == (3, 1, 1)
    assert [replace(one, kv_len=n).alignment for n in (1000, 1001, 1002)] == kinds[:3]
    found = {op.place()[-1]: part for op, part in one.lengths()}
    assert found == {kind: kinds[:8].count(kind) / 8 for kind in set(kinds)}
    assert {op.kv_len for op, _ in one.lengths()} <= set(range(1000, 1009))
