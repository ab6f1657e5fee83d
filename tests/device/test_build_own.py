"""Operators by our own kernels, as `chip profile --suite native` measures them."""

import pytest

from chip import ops

torch = pytest.importorskip("torch")

from chip.lab.measure import build, own_ops, point_cases, suites  # noqa: E402
from chip.lab.run.native import launches  # noqa: E402

ROWS = {"rows": 3, "cols": 64}
HEADS = {"batch": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}
CASES = {
    "rms_norm": [ROWS],
    "add_rms_norm": [ROWS],
    "silu_mul": [ROWS],
    "rope_store": [{"rows": 3, "heads": 4, "kv_heads": 2, "head_dim": 16}],
    "attention": [{**HEADS, "q_len": 1, "kv_len": 70}, {**HEADS, "q_len": 5, "kv_len": 70}],
}


def result(op, implementation, device="cpu"):
    where = torch.device(device)
    closure = build.build(op, where, torch.Generator(where).manual_seed(3), implementation)
    found = closure()
    return list(found) if isinstance(found, tuple) else [found]


@pytest.mark.parametrize(("kind", "axes"), [(kind, axes) for kind, all_axes in CASES.items() for axes in all_axes])
def test_our_kernels_are_called_with_what_they_take(kind, axes):
    """On a CPU PyTorch stands in for them, behind the same call."""
    results = result(ops.build(kind, {**axes, "dtype": "fp32"}), "chip")
    assert all(torch.isfinite(r).all() for r in results[: 1 if kind == "rope_store" else None])


def test_our_products_want_a_gpu():
    op = ops.build("linear", {"m": 1, "n": 8, "k": 8})
    with pytest.raises(build.Unsupported, match="our products"):
        own_ops.linear(op, torch.device("cpu"), torch.Generator())


def test_attention_that_our_kernels_do_not_have_is_refused():
    op = ops.build("attention", {**HEADS, "q_len": 5, "kv_len": 70, "window": 8})
    with pytest.raises(build.Unsupported, match="window"):
        result(op, "chip")


def test_the_suite_measures_every_launch_of_the_engine():
    """`linear` stands for the products, with the gate or without."""
    kinds = {p.op.kind for p in point_cases.same("native", "bf16")}
    of_launch = {"linear_few": "linear", "gate_up": "silu_mul", "gate_up_few": "linear"}
    of_launch |= {"decode_attention": "attention", "prefill_attention": "attention"}
    assert kinds == {of_launch.get(name, name) for name in launches.LAUNCHES}
    assert {p.implementation for p in point_cases.same("native", "bf16")} == {"chip"}
    assert suites.cases("native", "bf16", on_cpu=True) == []


def test_the_base_of_decode_attention_has_the_kernels_numbers():
    from chip.lab.kernels.triton import paged_decode_attention as kernel
    from chip.ops.attention_flash import OwnBase

    base = (OwnBase.PROGRAMS, OwnBase.PAGE_TOKENS, OwnBase.MOST_SHARES)
    assert base == (kernel.PER_SM, kernel.PAGE, kernel.MOST_SPLITS)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", [*CASES, "linear"])
def test_our_kernels_give_what_pytorch_gives(kind):
    for axes in CASES.get(kind, [{"m": m, "n": 256, "k": 512} for m in (1, 64, 200)]):
        op = ops.build(kind, axes)
        ours, theirs = result(op, "chip", "cuda"), result(op, "torch", "cuda")
        if kind in ("linear", "rms_norm", "rope_store"):  # the same draws in the same order
            assert torch.allclose(ours[0].float(), theirs[0].float(), atol=0.05, rtol=0.05)
        assert all(torch.isfinite(r.float()).all() for r in ours[:1])
