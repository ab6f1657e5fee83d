"""Shapes to measure are those of the bundled points, and new ones between the points that predict each other worst."""

from collections import Counter
from math import dist, log

import pytest

from chip import ops
from chip.hardware import gpus, points
from chip.lab.measure import point_cases

SUITES = ("tables", "vllm", "quant", "native")


@pytest.fixture(scope="module")
def groups():
    folder = gpus.POINTS / "h200"
    return [g for kind in points.kinds(folder) for g in points.read(folder / f"{kind}.csv").groups]


def test_suites_have_every_point_once(groups):
    found = [case for suite in SUITES for case in point_cases.same(suite, "bf16")]
    assert len(found) == len({*found})
    known = Counter((g.kind, g.context) for g in groups for op in g.ops if not point_cases.is_copied(g, op))
    assert Counter((c.op.kind, c.context) for c in found) == known


def test_cases_run_the_kernel_that_their_point_has(groups):
    kernels = {(g.kind, g.context, op): set() for g in groups for op in g.ops}
    for group in groups:
        for op in group.ops:
            kernels[group.kind, group.context, op].add(group.kernel)
    for suite in SUITES:
        for case in point_cases.same(suite, "bf16"):
            ran = case.op.kernel_of(case.implementation)
            assert ran in kernels[case.op.kind, case.context, case.op], case


def test_a_run_cut_short_has_some_of_every_large_group():
    found = point_cases.same("tables", "bf16")
    every = Counter((c.op.kind, c.implementation, c.context) for c in found)
    first = Counter((c.op.kind, c.implementation, c.context) for c in found[: len(found) // 5])
    for name, count in every.items():
        assert first[name] == pytest.approx(count / 5, rel=0.3, abs=2), name


def test_another_dtype_is_another_dtype_of_the_same_shapes():
    half = point_cases.same("tables", "fp16")
    assert {c.op.dtype for c in half if hasattr(c.op, "dtype")} == {"fp16"}
    assert len(half) == len(point_cases.same("tables", "bf16"))


def test_shapes_between_points_are_new_and_near_one_that_is_predicted_badly(groups):
    found = point_cases.between("bf16")
    assert len(found) > 300
    for case in found[::10]:
        assert case.op.like_measured() == case.op
        kernel = case.op.kernel_of(case.implementation)
        name = (case.op.kind, kernel, case.context, case.op.dtype)
        own = next(g for g in groups if (g.kind, g.kernel, g.context, g.dtype) == name)
        assert case.op not in own.ops
        bad = [op for op, e in zip(own.ops, own.loo) if abs(e) >= point_cases.WORST]
        widest = max(dist(op.place(), case.op.place()) for op in own.ops)
        assert min(dist(op.place(), case.op.place()) for op in bad) < widest / 3


def test_a_shape_midway_keeps_what_both_have():
    axes = {"heads": 32, "kv_heads": 8, "head_dim": 128}
    made = {n: ops.build("attention", {**axes, "batch": 1, "q_len": n, "kv_len": n}) for n in (512, 2048)}
    middle = point_cases.middle(made[512], made[2048])
    assert (middle.q_len, middle.kv_len, middle.batch) == (1024, 1024, 1)
    under_mask = {
        n: ops.build("masked_attention", {**axes, "batch": 2, "q_len": n, "kv_len": n + 64}) for n in (64, 960)
    }
    middle = point_cases.middle(under_mask[64], under_mask[960])
    assert middle.kv_len == middle.q_len + 64
    assert middle.kv_len % 64 == 0
    products = [ops.build("linear", {"m": m, "n": n, "k": 4096}) for m, n in ((3, 1000), (48, 4000))]
    middle = point_cases.middle(*products)
    assert (middle.m, middle.n % 8, middle.k) == (12, 0, 4096)
    assert log(middle.n / 2000) == pytest.approx(0, abs=0.01)
    assert point_cases.middle(products[0], products[0]) is None
