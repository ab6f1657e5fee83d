"""Axes of operators: senseless ones are refused by name."""

import pytest
from folding import each

from chip import ops
from chip.ops.linear import Linear
from chip.types import ChipError

LINEAR = {"m": 8, "n": 16, "k": 32}
ATTENTION = {"batch": 1, "heads": 8, "kv_heads": 2, "head_dim": 64, "q_len": 1, "kv_len": 10}


@each(
    [
        ("linaer", {}, "no operator 'linaer'; did you mean linear?"),
        ("elementwise", {}, "no operator 'elementwise'"),
        ("__init__", {}, "no operator '__init__'"),
        ("", {}, "no operator ''; known: add, "),
        (7, {}, "op must be an operator's name, got '7'"),
        (["linear"], {}, "op must be an operator's name"),
        ("x" * 5000, {}, "no operator 'xxx"),
        ("linear", {"m": 8, "n": 16}, "linear needs axis 'k'; its axes are m, n, k, dtype, weight_dtype, bias"),
        ("linear", {**LINEAR, "kk": 1}, "linear has no axis 'kk'; did you mean 'k'?"),
        ("linear", {**LINEAR, "rows": 1}, "linear has no axis 'rows'; its axes are m, n, k"),
        ("linear", {**LINEAR, "m": 0}, "linear axis 'm' must be a whole number from 1 to 2^40, got '0'"),
        ("linear", {**LINEAR, "m": -3}, "got '-3'"),
        ("linear", {**LINEAR, "m": 2**40 + 1}, "got '1099511627777'"),
        ("linear", {**LINEAR, "m": 10**400}, "got '1000000"),
        ("linear", {**LINEAR, "m": 2.5}, "got '2.5'"),
        ("linear", {**LINEAR, "m": float("nan")}, "got 'nan'"),
        ("linear", {**LINEAR, "m": float("inf")}, "got 'inf'"),
        ("linear", {**LINEAR, "m": True}, "got 'True'"),
        ("linear", {**LINEAR, "m": "8"}, "linear axis 'm' must be a whole number"),
        ("linear", {**LINEAR, "m": None}, "got 'None'"),
        ("linear", {**LINEAR, "m": [8]}, "got '[8]'"),
        ("linear", {**LINEAR, "bias": 2}, "linear axis 'bias' must be true or false, got '2'"),
        ("linear", {**LINEAR, "bias": "yes"}, "must be true or false"),
        ("linear", {**LINEAR, "dtype": "bf17"}, "linear dtype 'bf17' is not known; choose one of fp32, "),
        ("linear", {**LINEAR, "dtype": 16}, "linear dtype '16' is not known"),
        ("linear", {**LINEAR, "dtype": ["bf16"]}, "is not known"),
        ("linear", {**LINEAR, "weight_dtype": "int3"}, "linear weight_dtype 'int3' is not known"),
        ("attention", {**ATTENTION, "kv_heads": 3}, "heads 8 is not a multiple of kv_heads 3"),
        ("attention", {**ATTENTION, "q_len": 11}, "kv_len 10 counts past and new tokens, so it is at least q_len 11"),
        ("masked_attention", {**ATTENTION, "q_len": 11}, "kv_len 10 counts every slot, so it is at least q_len 11"),
        ("attention", {**ATTENTION, "window": -1}, "axis 'window' must be a whole number from 0"),
        ("mla", {"batch": 1, "heads": 8, "kv_heads": 1, "head_dim": 8, "q_len": 2, "kv_len": 1}, "at least q_len 2"),
        ("moe_experts", {"tokens": 1, "hidden": 8, "intermediate": 8, "experts": 2, "top_k": 3}, "top_k 3 is more"),
        (
            "mla",
            {"batch": 1, "heads": 8, "kv_heads": 1, "head_dim": 8, "v_head_dim": 9, "q_len": 1, "kv_len": 1},
            "v_head_dim 9 is more than 8",
        ),
        (
            "grouped_router",
            {"tokens": 1, "hidden": 8, "experts": 10, "top_k": 1, "groups": 4},
            "no multiple of groups 4",
        ),
        ("moe_router", {"tokens": 1, "hidden": 8, "experts": 2, "top_k": 3}, "top_k 3 is more than experts 2"),
        (
            "conv2d",
            {"batch": 1, "in_channels": 1, "height": 2, "width": 9, "out_channels": 1},
            "kernel 3x3 is larger than the padded image 2x9",
        ),
    ]
)
def test_senseless_calls_are_refused_by_name(kind, axes, line):
    with pytest.raises(ChipError) as told:
        ops.build(kind, axes)
    assert line in str(told.value)
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 700


def test_axes_of_their_own_kind_are_taken():
    assert ops.build("linear", {**LINEAR, "m": 8.0, "bias": 1}) == Linear(8, 16, 32, bias=True)
    uncausal = ops.build("attention", {**ATTENTION, "causal": False, "q_len": 20})
    assert uncausal.cost().flops == 2 * 8 * 20 * 10 * 128
