"""The ledger of captured steps under HF transformers: every part of a layer has its own row."""

from pathlib import Path

import pytest

from chip.explain import ledger
from chip.files import traces
from chip.files.traces import Operator, TensorArg

H200 = Path(__file__).parents[2] / "results" / "h200" / "traces"
PARTS = {"attention", "norms", "activation", "residual", "kv_append"}


def found(name, folder="hf"):
    return ledger.ledger(traces.read(H200 / folder / f"{name}.json")[1], "h200")


@pytest.mark.parametrize("path", sorted((H200 / "hf").glob("*.json")), ids=lambda p: p.stem)
def test_a_step_of_hf_is_told_part_by_part(path):
    one = found(path.stem)
    rows = {e.role: e for e in one.entries}
    assert {"down_proj", "o_proj", "lm_head", *PARTS} <= set(rows), "products in their order, parts by operators"
    assert ledger.MERGED not in rows
    for part in PARTS:
        assert 0.7 < rows[part].predicted_s / rows[part].measured_s < 1.4, part
    assert one.measured_s == pytest.approx(sum(e.measured_s for e in one.entries))
    rest = sum(e.measured_s for name, e in rows.items() if name in ("pointwise", ledger.OTHER))
    assert rest < 0.02 * one.measured_s, "what no part has"


def test_attention_of_many_kernels_is_one_row_with_what_looks_like_it():
    rows = {e.role for e in found("bloom-7b1-decode", "hf-eager").entries}
    assert ledger.MERGED in rows
    assert not rows & {"attention", "pointwise"}


def operator(name, *shapes):
    tensors = tuple(TensorArg(s, (1,) * len(s), "bfloat16", i) for i, s in enumerate(shapes))
    return Operator(f"aten::{name}", "", tensors, ())


@pytest.mark.parametrize(
    ("op", "part"),
    [
        (operator("_scaled_dot_product_cudnn_attention", (8, 32, 1, 64)), "attention"),
        (operator("clone", (8, 4, 8, 576, 64)), "attention"),  # a key head for each of its queries
        (operator("mul", (8, 1, 2048), (8, 1, 1)), "norms"),
        (operator("mul", (2048,), (8, 1, 2048)), "norms"),
        (operator("mul", (8, 32, 1, 64), (8, 1, 1, 64)), "rotation"),
        (operator("mul", (8, 1, 8192), (8, 1, 8192)), "activation"),
        (operator("add", (8, 1, 2048), (8, 1, 2048)), "residual"),
        (operator("add", (1,)), "kv_append"),  # where the cache goes on
        (operator("embedding", (32000, 2048), (8, 1)), "pointwise"),
    ],
)
def test_a_torch_operator_says_which_part_it_is(op, part):
    assert ledger.part_of(op, 2048) == part
