"""Operators: each one's cost by hand for one small shape, and the laws all costs keep."""

import dataclasses

import pytest
from folding import each
from hypothesis import given, settings
from hypothesis import strategies as st

from chip import ops
from chip.ops.collectives import AllReduce
from chip.ops.composed import KINDS
from chip.ops.linear import Linear
from chip.ops.quantised import Quantize
from chip.types import Cost

# kind -> (axes, FLOPs, bytes read, bytes written); bf16, so 2 bytes an element, unless said otherwise
BY_HAND = {
    "linear": ({"m": 2, "n": 3, "k": 4}, 2 * 2 * 3 * 4, 2 * (2 * 4 + 3 * 4), 2 * 2 * 3),
    # bytes of fp8 and a 16-bit result; a 4-byte scale for each of 2 x 2 blocks of weights and each 2 values of 2 tokens
    "scaled_linear": (
        {"m": 2, "n": 6, "k": 4, "block_n": 3, "block_k": 2, "group": 2},
        2 * 2 * 6 * 4,
        (2 * 4 + 6 * 4) + 4 * (2 * 2 + 2 * 2),
        2 * 2 * 6,
    ),
    # 4-bit weights; for each of 2 groups in 3 rows a 16-bit scale and a 4-bit zero point
    "packed_linear": (
        {"m": 2, "n": 3, "k": 4, "group": 2, "zeros": True},
        2 * 2 * 3 * 4,
        2 * 2 * 4 + 3 * 4 / 2 + 6 * 2.5,
        2 * 2 * 3,
    ),
    "bmm": ({"batch": 5, "m": 2, "n": 3, "k": 4}, 5 * 2 * 2 * 3 * 4, 5 * 2 * (2 * 4 + 4 * 3), 5 * 2 * 2 * 3),
    # 3 new tokens after 1: they see 2, 3 and 4 keys; each pair is a product of 8 for the score and of 8 for the value
    "attention": (
        {"batch": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "q_len": 3, "kv_len": 4},
        2 * 2 * (2 + 3 + 4) * (8 + 8),
        2 * (3 * 2 * 8 + 4 * 1 * (8 + 8)),
        2 * 3 * 2 * 8,
    ),
    # one query meets the last 2 of 4 keys
    "local_attention": (
        {"batch": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "q_len": 1, "kv_len": 4, "window": 2},
        2 * 2 * 2 * (8 + 8),
        2 * (2 * 8 + 2 * (8 + 8)),
        2 * 2 * 8,
    ),
    # attention with bytes for queries, keys and values, or for keys and values alone
    "fp8_attention": (
        {"batch": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "q_len": 3, "kv_len": 4},
        2 * 2 * (2 + 3 + 4) * (8 + 8),
        3 * 2 * 8 + 4 * 1 * (8 + 8),
        2 * 3 * 2 * 8,
    ),
    "fp8_cache_attention": (
        {"batch": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "q_len": 3, "kv_len": 4},
        2 * 2 * (2 + 3 + 4) * (8 + 8),
        2 * 3 * 2 * 8 + 4 * 1 * (8 + 8),
        2 * 3 * 2 * 8,
    ),
    # 3 queries meet all 4 slots; keys and values of 2 heads are copied to 4, the mask of 3 x 4 is read as bytes,
    # written as numbers and read again
    "masked_attention": (
        {"batch": 1, "heads": 4, "kv_heads": 2, "head_dim": 8, "q_len": 3, "kv_len": 4},
        2 * 4 * (3 * 4) * (8 + 8),
        2 * (3 * 4 * 8 + 4 * 2 * (8 + 8) + 4 * 4 * (8 + 8) + 3 * 4) + 3 * 4,
        2 * (3 * 4 * 8 + 4 * 4 * (8 + 8) + 3 * 4),
    ),
    # attention over 4 keys, all of which were read and written once more before
    "growing_attention": (
        {"batch": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "q_len": 1, "kv_len": 4},
        2 * 2 * 4 * (8 + 8),
        2 * (2 * 8 + 4 * (8 + 8) + 4 * (8 + 8)),
        2 * (2 * 8 + 4 * (8 + 8)),
    ),
    # of 2 x 3 x 4 scores: biases spread and read by the product, mask added, widened, softmax, narrowed, times values
    "alibi_attention": (
        {"batch": 1, "heads": 2, "kv_heads": 2, "head_dim": 8, "q_len": 3, "kv_len": 4},
        2 * 2 * (3 * 4) * (8 + 8),
        2 * (2 * 4 + 24 + 2 * 8 * (3 + 4) + 24 + 24 + 2 * 4 * (3 + 8) + 48) + 4 * (24 + 24),
        2 * (24 + 24 + 24 + 24 + 48 + 48) + 4 * (24 + 24),
    ),
    # two scalars, mask; queries, keys, values widened; queries, keys scaled; queries laid out, keys copied; product,
    # mask, softmax; hidden scores, hidden rows, set to zero; values copied, product; result and scores narrowed, merged
    "broadcast_attention": (
        {"batch": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "q_len": 3, "kv_len": 4},
        2 * 2 * (3 * 4) * (8 + 8),
        2 * (6 + 48 + 32 + 32)
        + 4 * (48 + 32 + 48 + 32 + 2 * 8 * (3 + 4) + 24 + 24 + 24 + 6 + 24 + 32)
        + 4 * 2 * 4 * (3 + 8)
        + 2 * (96 + 48 + 48),
        2 * 14 + 4 * (48 + 32 + 32 + 48 + 32 + 48 + 64 + 24 + 24 + 24 + 6 + 6 + 1 + 24 + 64 + 48) + 2 * (48 + 24 + 48),
    ),
    # queries and keys widened, their product scaled, masked, normalised and narrowed, times values
    "float_attention": (
        {"batch": 1, "heads": 2, "kv_heads": 2, "head_dim": 8, "q_len": 3, "kv_len": 4},
        2 * 2 * (3 * 4) * (8 + 8),
        2 * (48 + 64 + 2 * 4 * (3 + 8) + 48) + 4 * (2 * 8 * (3 + 4) + 4 * 24),
        4 * (48 + 64 + 24 + 3 * 24) + 2 * (24 + 48 + 48),
    ),
    # keys and values of 1 head repeated for 2, product, scaled, masked; with a sink 5 in each of 6 rows: joined,
    # largest of each, subtracted, softmax; times values
    "sink_attention": (
        {"batch": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "q_len": 3, "kv_len": 4},
        2 * 2 * (3 * 4) * (8 + 8),
        2 * (2 * 32 + 2 * 8 * (3 + 4) + 3 * 24 + 3 * 30 + 2 * 4 * (3 + 8) + 48),
        2 * (2 * 64 + 24 + 24 + 24 + 30 + 6 + 30 + 30 + 48 + 48),
    ),
    "kv_join": (
        {"batch": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "q_len": 1, "kv_len": 4},
        0,
        2 * 4 * (8 + 8),
        2 * 4 * (8 + 8),
    ),
    # widen (2 -> 4 bytes), square (4 -> 4), average (4), scale (4 -> 4), narrow (4 -> 2), times weight (2 -> 2)
    "rms_norm_composed": (
        {"rows": 3, "cols": 5},
        4 * 15,
        (2 + 4 + 4 + 4 + 4 + 2) * 15 + 2 * 5,
        (4 + 4 + 4 + 2 + 2) * 15,
    ),
    # the same, but times weight (4 -> 4) before it is narrowed (4 -> 2)
    "rms_norm_fp32": ({"rows": 3, "cols": 5}, 4 * 15, (2 + 5 * 4) * 15 + 2 * 5, (4 * 4 + 2) * 15),
    # the weight, widened (2 -> 4) and one added (4 -> 4), is read in fp32
    "rms_norm_plus_one": (
        {"rows": 3, "cols": 5},
        4 * 15,
        (2 + 5 * 4) * 15 + (2 + 4 + 4) * 5,
        (4 * 4 + 2) * 15 + 2 * 4 * 5,
    ),
    # widen, mean, take it off, square, mean, take the first off again, scale, times widened weight, narrow
    "layer_norm_composed": (
        {"rows": 3, "cols": 5},
        7 * 15,
        (2 + 8 * 4) * 15 + (2 + 4) * 5,
        (6 * 4 + 2) * 15 + 4 * 5,
    ),
    # of 24 values: times cos, minus half of them, joined, times sin, added; cosines and sines of a token, 4 each
    "rope_composed": (
        {"rows": 3, "heads": 2, "head_dim": 4},
        6 * 3 * 2 * 2,
        2 * (24 * (1 + 0.5 + 1 + 1 + 2) + 2 * 3 * 4),
        2 * 24 * (1 + 0.5 + 1 + 1 + 1),
    ),
    # of 12 angles, in fp32: half of them written, read and joined, then each read and written by cosine, sine and two
    # scalings, read by two casts and written in bf16
    "rotary_table": (
        {"rows": 3, "cols": 4},
        6 * 12,
        4 * 12 * (0.5 + 1 + 2 + 2 + 2),
        4 * 12 * (0.5 + 1 + 2 + 2) + 2 * 2 * 12,
    ),
    # keys are 6 + 2 wide, values the same 6, read once and shared by both heads
    "mla": (
        {"batch": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "v_head_dim": 6, "q_len": 1, "kv_len": 4},
        2 * 2 * 4 * (8 + 6),
        2 * (2 * 8 + 4 * 8),
        2 * 2 * 6,
    ),
    # expanded, every head has keys of 8 and values of 6
    "mla_prompt": (
        {"batch": 1, "heads": 2, "kv_heads": 2, "head_dim": 8, "v_head_dim": 6, "q_len": 1, "kv_len": 4},
        2 * 2 * 4 * (8 + 6),
        2 * (2 * 8 + 4 * 2 * (8 + 6)),
        2 * 2 * 6,
    ),
    # 3 tokens, 2 of 4 experts each: 4 (1 - (1/2)^3) = 3.5 experts are read; 6 token-expert pairs go through
    # up and gate (5 -> 7 each), activation (7 from both) and down (7 -> 5)
    "moe_experts": (
        {"tokens": 3, "hidden": 5, "intermediate": 7, "experts": 4, "top_k": 2},
        6 * 2 * (5 * 7 * 3),
        2 * (6 * 5 + 6 * 2 * 7 + 6 * 7) + 3.5 * 2 * (3 * 5 * 7),
        2 * (6 * 2 * 7 + 6 * 7 + 6 * 5),
    ),
    # as moe_experts with bytes for weights and inputs; 3 x 5 inputs and 6 x 7 between are rounded (2 bytes to 1); each
    # expert read has a 4-byte scale for each of its three matrices
    "scaled_experts": (
        {"tokens": 3, "hidden": 5, "intermediate": 7, "experts": 4, "top_k": 2},
        6 * 2 * (5 * 7 * 3),
        (6 * 5 + 6 * 7) + 2 * 6 * 2 * 7 + 3.5 * (3 * 5 * 7) + 2 * (15 + 42) + 3.5 * 4 * 3,
        2 * (6 * 2 * 7 + 6 * 7 + 6 * 5) + (15 + 42),
    ),
    # 4-bit weights, a 16-bit scale for each of an expert's 7 + 7 + 5 rows
    "packed_experts": (
        {"tokens": 3, "hidden": 5, "intermediate": 7, "experts": 4, "top_k": 2},
        6 * 2 * (5 * 7 * 3),
        2 * (6 * 5 + 6 * 2 * 7 + 6 * 7) + 3.5 * ((3 * 5 * 7) / 2 + 2 * (7 + 7 + 5)),
        2 * (6 * 2 * 7 + 6 * 7 + 6 * 5),
    ),
    # besides the products: rows gathered, masked; masked, silu, times the gate; masked, weighed, put in order; summed
    "moe_experts_composed": (
        {"tokens": 3, "hidden": 5, "intermediate": 7, "experts": 4, "top_k": 2},
        6 * 2 * (5 * 7 * 3),
        2 * (6 * 5 + 6 * 7 + 6 * 5 * 6 + 6 * 7 * (2 + 1 + 2)) + 3.5 * 2 * (3 * 5 * 7),
        2 * (6 * 2 * 7 + 6 * 5 + 6 * 5 * 5 + 6 * 7 * (2 + 1 + 1) + 3 * 5),
    ),
    # scores (3 x 4) widened, softmax, chosen from; the 6 chosen summed, divided, narrowed
    "moe_router_composed": (
        {"tokens": 3, "hidden": 5, "experts": 4, "top_k": 2},
        2 * 3 * 4 * 5 + 5 * 3 * 4,
        2 * (3 * 5 + 4 * 5) + 12 * (2 + 4 + 4) + 6 * 3 * 4 + 3 * 4,
        12 * (2 + 4 + 4) + 6 * (4 + 8) + 3 * 4 + 6 * 4 + 6 * 2,
    ),
    "moe_router": (
        {"tokens": 3, "hidden": 5, "experts": 4, "top_k": 2},
        2 * 3 * 4 * 5 + 5 * 3 * 4,
        2 * (3 * 5 + 4 * 5),
        3 * 2 * 8,
    ),
    **dict.fromkeys(  # groups of experts cost what all alike do
        ("grouped_router", "biased_router"),
        ({"tokens": 3, "hidden": 5, "experts": 4, "top_k": 2, "groups": 2}, 180, 2 * (3 * 5 + 4 * 5), 3 * 2 * 8),
    ),
    "layer_norm": ({"rows": 3, "cols": 5}, 8 * 15, 2 * (15 + 2 * 5), 2 * 15),
    "rms_norm": ({"rows": 3, "cols": 5}, 4 * 15, 2 * (15 + 5), 2 * 15),
    # the result in bytes, and a 4-byte scale for each row, or for each 2 values of it
    "quantize": ({"rows": 3, "cols": 5}, 3 * 15, 2 * 15, 15 + 4 * 3),
    "rms_norm_quant": ({"rows": 3, "cols": 5}, 7 * 15, 2 * (15 + 5), 15 + 4 * 3),
    "add_rms_norm_quant": ({"rows": 3, "cols": 5, "group": 2}, 8 * 15, 2 * (2 * 15 + 5), 2 * 15 + 15 + 4 * 9),
    "silu_mul_quant": ({"rows": 3, "cols": 5}, 8 * 15, 2 * 2 * 15, 15 + 4 * 3),
    "add_layer_norm": ({"rows": 3, "cols": 5}, 9 * 15, 2 * (2 * 15 + 2 * 5), 2 * 2 * 15),
    "add_rms_norm": ({"rows": 3, "cols": 5}, 5 * 15, 2 * (2 * 15 + 5), 2 * 2 * 15),
    "layer_norm_gelu": ({"rows": 3, "cols": 5}, 16 * 15, 2 * (15 + 2 * 5), 2 * 15),
    "row_normalize": ({"rows": 3, "cols": 5}, 6 * 15, 2 * 15, 2 * 15),
    "softmax": ({"rows": 3, "cols": 5}, 5 * 15, 2 * 15, 2 * 15),
    "gelu": ({"rows": 3, "cols": 5}, 8 * 15, 2 * 15, 2 * 15),
    "gelu_fast": ({"rows": 3, "cols": 5}, 8 * 15, 2 * 12 * 15, 2 * 9 * 15),
    "gelu_new": ({"rows": 3, "cols": 5}, 8 * 15, 2 * 10 * 15, 2 * 8 * 15),
    "rope_join": ({"rows": 3, "cols": 5}, 0, 2 * 15, 2 * 15),
    "silu_mul_halves": ({"rows": 3, "cols": 5}, 5 * 15, 2 * 3 * 15, 2 * 2 * 15),
    "silu": ({"rows": 3, "cols": 5}, 4 * 15, 2 * 15, 2 * 15),
    "silu_mul": ({"rows": 3, "cols": 5}, 5 * 15, 2 * 2 * 15, 2 * 15),
    "shared_silu_mul": ({"rows": 3, "cols": 5}, 5 * 15, 2 * 2 * 15, 2 * 15),
    "relu": ({"rows": 3, "cols": 5}, 15, 2 * 15, 2 * 15),
    "add": ({"rows": 3, "cols": 5}, 15, 2 * 2 * 15, 2 * 15),
    "scale": ({"rows": 3, "cols": 5}, 15, 2 * 15, 2 * 15),
    "softcap": ({"rows": 3, "cols": 5}, 4 * 15, 2 * 15, 2 * 15),
    "copy": ({"rows": 3, "cols": 5}, 0, 2 * 15, 2 * 15),
    "fill": ({"rows": 3, "cols": 5}, 0, 0, 2 * 15),
    "kv_append": ({"rows": 3, "cols": 5}, 0, 2 * 15, 2 * 15),
    "kv_append_fp8": ({"rows": 3, "cols": 5}, 15, 2 * 15, 15),
    "kv_roll": ({"rows": 3, "cols": 5}, 0, 2 * 2 * 15, 2 * 2 * 15),
    # indices of 8 bytes come in or go out
    "embedding": ({"rows": 3, "cols": 5}, 0, 2 * 15 + 3 * 8, 2 * 15),
    "sampling": ({"rows": 3, "cols": 5}, 15, 2 * 15, 3 * 8),
    "sampling_pass": ({"rows": 3, "cols": 5, "reads": 2, "writes": 1}, 15, 4 * 2 * 15, 4 * 15),
    # 6 FLOPs turn a pair of values; cosines and sines of a token, 4 values, serve all its heads
    "rope": ({"rows": 3, "heads": 2, "head_dim": 4}, 6 * 3 * 2 * 2, 2 * (3 * 2 * 4 + 3 * 4), 2 * 3 * 2 * 4),
    # 2 query heads and 1 key head are turned, its value is moved; cosines and sines are fp32
    "rope_store": (
        {"rows": 3, "heads": 2, "kv_heads": 1, "head_dim": 4},
        6 * 3 * 3 * 2,
        2 * (3 * 4 * 4) + 4 * (3 * 4),
        2 * (3 * 4 * 4),
    ),
    "pointwise": ({"reads": 10, "writes": 4}, 10, 2 * 10, 2 * 4),
    # each rank adds up its quarter of 15 values from the three others
    "all_reduce": ({"rows": 3, "cols": 5, "ranks": 4}, 15 * 3 / 4, 2 * 15, 2 * 15),
    # its quarter goes out and the whole comes in; the whole goes in and its quarter, summed, comes out
    "all_gather": ({"rows": 4, "cols": 5, "ranks": 4}, 0, 2 * 5, 2 * 20),
    "reduce_scatter": ({"rows": 4, "cols": 5, "ranks": 4}, 20 * 3 / 4, 2 * 20, 2 * 5),
    # 6x6 image, padded to 8x8, kernel 3x3 every second: 3x3 outputs, each a product over 2*3*3 taps
    "conv2d": (
        {"batch": 1, "in_channels": 2, "height": 6, "width": 6, "out_channels": 4, "stride": 2, "padding": 1},
        2 * (4 * 3 * 3) * (2 * 3 * 3),
        2 * (2 * 6 * 6 + 4 * 2 * 3 * 3),
        2 * 4 * 3 * 3,
    ),
    # 2 layers of 4 gates: the first sees 3 inputs, the second the 4 hidden values of the first; 10 steps in all
    "lstm": (
        {"batch": 2, "seq": 5, "input_size": 3, "hidden": 4, "layers": 2},
        10 * 2 * 4 * 4 * ((3 + 4) + (4 + 4)) + 10 * 2 * 4 * 24,
        2 * (4 * 4 * ((3 + 4) + (4 + 4)) + 2 * 2 * 16 + 10 * (3 + 4) + 2 * 2 * 4 * 2),
        2 * (10 * 2 * 4 + 2 * 2 * 4 * 2),
    ),
    # 3 tokens of 5 channels, 2 taps: each tap a multiply-add; weights once; a step reads and writes the input before
    "causal_conv": ({"rows": 3, "cols": 5, "taps": 2}, 2 * 15 * 2, 2 * (15 + 10), 2 * 15),
    "causal_conv_step": ({"rows": 3, "cols": 5, "taps": 2}, 2 * 15 * 2, 2 * (15 + 10 + 15), 2 * (15 + 15)),
    # 3 tokens, 2 heads of 4 x 8 values in fp32 states; values, keys and queries of one group, decays
    "state_step": (
        {"rows": 3, "heads": 2, "head_dim": 4, "key_dim": 8},
        6 * 3 * 2 * 4 * 8,
        4 * 3 * 2 * 4 * 8 + 2 * 3 * (2 * 4 + 2 * 8 + 2),
        4 * 3 * 2 * 4 * 8 + 2 * 3 * 2 * 4,
    ),
    # chunks of 16: half of the pairs within, for keys and for values; states built and read; states between chunks
    "state_scan": (
        {"tokens": 3, "heads": 2, "head_dim": 4, "key_dim": 8, "chunk": 16},
        3 * (16 * (8 + 2 * 4) + 4 * 2 * 4 * 8),
        3 * (2 * (2 * 4 + 2 * 8 + 2) + 4 * 2 * 4 * 8 / 16),
        3 * (2 * 2 * 4 + 4 * 2 * 4 * 8 / 16),
    ),
}


def test_every_operator_is_checked_by_hand():
    assert set(BY_HAND) == set(ops.names())


@pytest.mark.parametrize("kind", [*KINDS, "kv_join"])
def test_a_composed_operator_is_as_many_kernels_as_it_has_parts(kind):
    assert len(ops.build(kind, BY_HAND[kind][0]).parts()) == ops.get(kind).KERNELS


@each(BY_HAND)
def test_cost_by_hand(kind):
    axes, flops, read, written = BY_HAND[kind]
    assert ops.build(kind, axes).cost() == pytest.approx(Cost(flops, read, written))


@each(BY_HAND)
def test_an_operator_is_a_value(kind):
    one, same = (ops.build(kind, BY_HAND[kind][0]) for _ in range(2))
    assert one == same
    assert len({one, same}) == 1
    assert one.compute.startswith("matmul_")
    if kind != "state_scan":  # counts whole chunks, however few tokens there are
        assert 0 <= one.counted_flops <= 2 * one.cost().flops + 1


def test_width_of_what_is_stored():
    assert Linear(2, 3, 4, "fp32").cost() == Cost(48, 4 * 20, 4 * 6)
    assert Linear(2, 3, 4, "bf16", "int8").cost() == Cost(48, 2 * 8 + 12, 2 * 6)
    assert Linear(2, 256, 4, "bf16", "int4").cost().read_bytes == 2 * 8 + 4 * 256 / 2  # scales: see packed_linear
    assert Linear(2, 3, 4, "fp8").cost() == Cost(48, 20, 2 * 6)  # operands of a byte, a result of 16 bits
    assert Linear(2, 3, 4, bias=True).cost() == Cost(48 + 6, 2 * 20 + 2 * 3, 2 * 6)


def test_scales_of_a_rounding():
    one_for_all = Quantize(3, 5, per_tensor=True)
    assert one_for_all.cost() == Cost(3 * 15, 2 * 2 * 15, 15 + 4)  # read twice: for the largest, then to scale
    assert Quantize(3, 5, per_tensor=True, static=True).cost() == Cost(3 * 15, 2 * 15 + 4, 15)
    assert Quantize(3, 5, to="fp4", group=2).cost().write_bytes == 15 / 2 + 4 * 9


def test_costs_add():
    assert Cost(1, 2, 3) + Cost(10, 20, 30) == Cost(11, 22, 33)
    assert Cost(12, 2, 4).bytes == 6
    assert Cost(12, 2, 4).intensity == 2
    assert Cost(0, 0, 0).intensity == 0


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 50))
def test_columns_of_a_product_add(m, n1, n2):
    """One wide product does the FLOPs and writes the bytes of two narrow ones; it reads its input once less."""
    together, apart = Linear(m, n1 + n2, 7).cost(), Linear(m, n1, 7).cost() + Linear(m, n2, 7).cost()
    assert together.flops == apart.flops
    assert together.write_bytes == apart.write_bytes
    assert apart.read_bytes - together.read_bytes == 2 * m * 7


NOT_MORE_WORK = {"block_n", "block_k", "group", "groups", "stride", "kernel_h", "kernel_w"}  # fewer outputs
OVER_GPUS = {"moe_experts", "scaled_experts", "packed_experts", "moe_experts_composed", "all_gather", "reduce_scatter"}
GROWING = {
    kind: [
        f.name
        for f in ops.axes(ops.get(kind)).values()
        if f.type == "int"
        and f.name not in NOT_MORE_WORK | {"window", "v_head_dim"}
        and not (f.name == "ranks" and kind in OVER_GPUS)  # more GPUs, less work of each
    ]
    for kind in BY_HAND
}


def test_one_head_of_keys_for_all_is_not_copied():
    axes = {"batch": 3, "heads": 8, "head_dim": 16, "q_len": 1, "kv_len": 40}
    one, two, all_of_them = (ops.build("masked_attention", {**axes, "kv_heads": n}) for n in (1, 2, 8))
    assert [op.copies for op in (one, two, all_of_them)] == [False, True, False]
    kept = 2 * 3 * 40 * 16 * 2  # bytes of one head's keys and values
    assert two.cost().read_bytes - one.cost().read_bytes == (2 - 1 + 8) * kept
    assert two.cost().write_bytes - one.cost().write_bytes == 8 * kept
    assert all_of_them.cost().read_bytes - one.cost().read_bytes == 7 * kept
    assert all_of_them.cost().write_bytes == one.cost().write_bytes


ATTENTIONS = (
    "attention", "growing_attention", "masked_attention", "kv_join", "fp8_attention", "fp8_cache_attention",
    "local_attention", "mla", "mla_prompt", *KINDS,
)  # fmt: skip


MOST_AXES = max(map(len, GROWING.values()))


@settings(max_examples=25)
@given(st.lists(st.integers(1, 40), min_size=MOST_AXES, max_size=MOST_AXES), st.integers(1, 30))
def test_no_axis_grows_for_less_work(sizes, more):
    for kind, growing in GROWING.items():
        axes = dict(zip(growing, sizes))
        if "kv_len" in axes:
            axes["kv_len"] += axes["q_len"]
        if "top_k" in axes:
            axes["experts"] += axes["top_k"] + more
        if kind in ("all_gather", "reduce_scatter"):
            axes["ranks"] = 4
        if kind == "conv2d":
            axes["height"], axes["width"] = axes["height"] + 3, axes["width"] + 3
        for axis in growing:
            if axis == "chunk":  # larger chunks hand fewer states on
                continue
            drawn = {**axes, "heads": axes["kv_heads"]} if kind in ATTENTIONS else axes  # any number of them divides
            grown = {**drawn, axis: drawn[axis] + more}
            if axis == "q_len":  # more new tokens after the same past
                grown["kv_len"] += more
            if kind in ATTENTIONS and axis == "heads":
                grown["heads"] = drawn["heads"] * (1 + more)
            elif kind in ATTENTIONS and axis == "kv_heads":
                drawn["heads"] = grown["heads"] = 2 * drawn["kv_heads"] * grown["kv_heads"]
            small, large = ops.build(kind, drawn).cost(), ops.build(kind, grown).cost()
            # the expected experts are rounded
            assert all(b >= a * (1 - 1e-12) for a, b in zip(small, large)), (kind, axis, drawn, grown)


def test_a_ring_moves_almost_twice_the_tensor():
    one = AllReduce(3, 5, 4)
    assert one.bytes_over_link == 2 * 3 / 4 * 2 * 15
    assert one.hops == 6
    assert AllReduce(3, 5, 1).bytes_over_link == 0


@each(BY_HAND)
def test_the_largest_axes_stay_finite(kind):
    axes = {f.name: ops.MAX_AXIS for f in dataclasses.fields(ops.get(kind)) if f.type == "int"}
    flops, read, written = ops.build(kind, axes).cost()
    assert 0 <= flops < 1e120
    assert 0 <= read < 1e120
    assert 0 < written < 1e120
