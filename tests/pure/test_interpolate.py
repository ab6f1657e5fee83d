"""The one interpolator: right at its points, going on beyond them, and no cliff at any edge."""

from dataclasses import replace
from functools import cache
from heapq import nsmallest
from itertools import pairwise
from math import dist, exp, log

import pytest
from folding import each
from hypothesis import given, settings
from hypothesis import strategies as st

from chip import ops, stats
from chip.hardware import gpus, points
from chip.hardware.points import PointGroup
from chip.ops import BaseTime
from chip.ops.attention import Attention
from chip.ops.linear import GemmBase, Linear
from chip.ops.masked_attention import MaskedAttention
from chip.predictor.interpolate import (
    GROWTH,
    LEAST_SPREAD,
    NEAREST,
    UNKNOWN_SPREAD,
    Z90,
    CorrectionCurve,
    NearestPoints,
    Points,
)
from chip.types import ChipError

FOLDER = gpus.POINTS / "h200"
GROUPS = [g for kind in points.kinds(FOLDER) for g in points.read(FOLDER / f"{kind}.csv").groups]
BASE = GemmBase(2e-6, 7e14, 4e12, 132)
GRID = [Linear(m, n, k) for m in (1, 16, 256, 4096) for n in (256, 2048, 16384) for k in (512, 4096)]
# Correction of the logarithm that a step of 1 in coordinates may make: half as much again as any edge does.
STEEPEST, NOISE = 0.75, 0.02
OTHER_KERNEL = 1.0  # a distance in coordinates from which on another kernel runs, which has points of its own


def made(truth, shapes=GRID, loo=0.02):
    seconds = tuple(truth(op) for op in shapes)
    return Points(
        PointGroup("linear", "torch", "cold", "bf16", BASE, tuple(shapes), seconds, (loo,) * len(shapes)), BASE
    )


@cache
def bundled(name):
    group = next(g for g in GROUPS if g.name == name)
    return group, Points(group, group.base)


# --- at points, and between them
def test_a_base_that_is_right_but_for_a_factor_is_right_everywhere():
    found = made(lambda op: 1.3 * BASE.seconds(op))
    for op in (*GRID, Linear(77, 1000, 1000), Linear(9999, 64, 64)):
        assert found.seconds(op).seconds == pytest.approx(1.3 * BASE.seconds(op))


def test_at_a_point_it_is_mostly_that_point():
    odd = Linear(256, 2048, 4096)
    found = made(lambda op: BASE.seconds(op) * (1.5 if op == odd else 1.0))
    assert 1.3 < found.seconds(odd).seconds / BASE.seconds(odd) <= 1.5
    far = Linear(1, 16384, 512)
    assert found.seconds(far).seconds == pytest.approx(BASE.seconds(far), rel=0.03)


@settings(deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=len(GRID), max_size=len(GRID)), st.integers(1, 10**5), st.integers(1, 4096))
def test_between_points_it_is_between_their_corrections(logs, m, n):
    factors = dict(zip(GRID, map(exp, logs)))
    found = made(lambda op: BASE.seconds(op) * factors[op])
    op = Linear(m, 8 * n, 1024)
    assert min(logs) - 1e-9 <= log(found.seconds(op).seconds / BASE.seconds(op)) <= max(logs) + 1e-9


@each([g.name for g in GROUPS])
def test_bundled_points_are_met_better_than_when_left_out(name):
    group, found = bundled(name)
    pairs = [(found.seconds(op), s) for op, s in zip(group.ops, group.seconds)]
    errors = [abs(e.seconds / s - 1) for e, s in pairs]
    assert stats.median(errors) <= stats.median([abs(e) for e in group.loo]) + 0.005
    inside = [abs(log(e.seconds / s)) <= 1.645 * e.spread for e, s in pairs]
    assert sum(inside) >= 0.8 * len(inside), "of the points that it was made from, most lie in their interval"


@each([g.name for g in GROUPS[::4]])
def test_left_out_errors_are_those_of_the_others(name):
    """The column of every file, computed again from the others: chip fit judged what is predicted here."""
    group, found = bundled(name)
    for i in range(0, len(group.ops), 5):
        again = exp(found.correction(found.places[i], but=i).value - found.residual(i)[0]) - 1
        assert again == pytest.approx(group.loo[i], abs=0.035), "but for rounding, and points that are as near"


@each(["linear (torch, bf16, cold)", "attention (fa3, bf16, cold)", "rms_norm (compiled, bf16, cold)"])
def test_the_nearest_of_a_place_are_those_of_all_points(name):
    """Near by and far away."""
    group, found = bundled(name)
    every = NearestPoints(found.places)
    for i in range(0, len(group.ops), 3):
        place = tuple(x + off for x, off in zip(found.places[i], (0.3, -0.1, 0.0, 7.0 * (i % 5 == 0), 0.2)))
        apart = nsmallest(NEAREST, (dist(p, place) for p in found.places))
        assert [distance for distance, _ in every.of(place)] == pytest.approx(apart)
        assert i not in [point for _, point in every.of(place, but=i)]


# --- beyond them
@each([g.name for g in GROUPS])
def test_far_beyond_the_points_the_correction_goes_on_and_the_spread_grows(name):
    """By a thousand and a million times along the axis that grows with tokens."""
    group, found = bundled(name)
    axis = next(iter(ops.axes(type(group.ops[0]))))
    largest = max(group.ops, key=lambda op: getattr(op, axis))
    corrections = []
    for times in (1, 2**10, 2**20):
        op = replace(largest, **{axis: getattr(largest, axis) * times})
        corrections.append(found.correction(op.place()))
    _, far, further = corrections
    assert abs(further.value - far.value) < 0.15
    residuals = [found.residual(i)[0] for i in range(len(group.ops))]
    assert min(residuals) - 1e-9 <= further.value <= max(residuals) + 1e-9
    assert further.spread > far.spread + GROWTH > LEAST_SPREAD + GROWTH


def test_the_spread_is_what_the_points_near_by_were_off():
    near, far = made(BASE.seconds, loo=0.05), made(BASE.seconds, loo=0.3)
    op = Linear(16, 2048, 512)
    assert near.seconds(op).spread == pytest.approx(log(1.05))
    assert far.seconds(op).spread == pytest.approx(log(1.3))
    assert made(BASE.seconds, loo=0.0).seconds(op).spread == LEAST_SPREAD
    nobody = Points(
        PointGroup("linear", "torch", "cold", "bf16", BASE, tuple(GRID), tuple(map(BASE.seconds, GRID))), BASE
    )
    assert nobody.seconds(op).spread == pytest.approx(log(1 + UNKNOWN_SPREAD))


# --- no cliff
def beyond(group, op, axis, outwards, by):
    """The same operator a little further out, if the same kernel runs it."""
    size = getattr(op, axis)
    new = round(size * by) if outwards else round(size / by)
    if axis in ("n", "k"):
        new = (new // 8 + outwards) * 8
    if new == size or new < 1:
        return None
    values = {a: getattr(op, a) for a in ops.axes(type(op))}
    try:
        other = ops.build(group.kind, {**values, axis: new})
    except ChipError:
        return None
    runs_it = other.kernel_of(group.kernel.split(".")[0]) == group.kernel
    return other if runs_it and other.like_measured() == other else None


TWO_WIDTHS = {"silu_mul_quant": 1.5}  # measured at two, of which the wider takes another form, twice as slow


@each([g.name for g in GROUPS])
def test_no_edge_of_the_points_is_a_cliff(name):
    """From every other outermost point along every axis, 1 % and 20 % further out: the correction changes little, and
    the spread does not leap."""
    group, found = bundled(name)
    sizes = [axis for axis, f in ops.axes(type(group.ops[0])).items() if f.type == "int"]
    walked = 0
    for axis in sizes:
        values = [getattr(op, axis) for op in group.ops]
        for edge, outwards in ((min(values), False), (max(values), True)):
            for op in [o for o in group.ops if getattr(o, axis) == edge][::2]:
                here = found.correction(op.place())
                for by in (1.01, 1.2):
                    other = beyond(group, op, axis, outwards, by)
                    far = dist(op.place(), other.place()) if other else OTHER_KERNEL
                    if far >= OTHER_KERNEL:
                        continue
                    walked += 1
                    there = found.correction(other.place())
                    steepest = TWO_WIDTHS.get(group.kind, STEEPEST)
                    assert abs(there.value - here.value) <= NOISE + steepest * far, (op, axis, getattr(other, axis))
                    assert there.spread <= 2 * here.spread + GROWTH * far + 0.05, (op, axis, getattr(other, axis))
    assert walked > 0


# --- between powers of two
def test_a_curve_is_exact_at_powers_of_two_and_straight_between_them():
    _, found = bundled("linear (torch, bf16, cold)")
    curve = CorrectionCurve(found, lambda m, n: Linear(m, n, 4096).place())
    corners = [found.correction(Linear(m, n, 4096).place()) for m in (64, 128) for n in (1024, 2048)]
    assert [curve.at((m, n)) for m in (64, 128) for n in (1024, 2048)] == corners
    for i in (0, 1):
        assert curve.at((96, 1536))[i] == pytest.approx(sum(c[i] for c in corners) / 4)


@each([g.name for g in GROUPS if not issubclass(ops.get(g.kind), (Attention, MaskedAttention))])
def test_a_curve_is_near_the_points_it_goes_through(name):
    group, found = bundled(name)
    axis = next(iter(ops.axes(type(group.ops[0]))))
    errors = []
    for op, seconds in list(zip(group.ops, group.seconds))[::3]:
        curve = CorrectionCurve(found, lambda n, op=op: replace(op, **{axis: n}).place())
        errors.append(abs(found.base.seconds(op) * exp(curve.at((getattr(op, axis),)).value) / seconds - 1))
    assert stats.median(errors) <= stats.median([abs(e) for e in group.loo]) + 0.01


@pytest.mark.parametrize(("least", "most"), [*pairwise([0, 0.25, 0.5, 0.75, 1, 1.5, 20])])
def test_intervals_hold_as_many_left_out_points_near_to_the_others_as_far_from_them(least, most):
    """Each point predicted from all others of its group; `least` to `most`: how far the nearest of those lies."""
    held = [inside for away, inside in left_out() if least <= away < most]
    assert len(held) > 50
    assert 0.86 < sum(held) / len(held) < (0.99 if len(held) > 200 else 1.01)


@cache
def left_out():
    found = []
    for group in GROUPS:
        if group.base is None or len(group.ops) <= 2 * NEAREST:
            continue
        known = Points(group, group.base)
        for i in range(0, len(group.ops), max(1, len(group.ops) // 80)):
            apart = min(dist(place, known.places[i]) for j, place in enumerate(known.places) if j != i)
            value, spread = known.correction(known.places[i], i)
            found.append((apart, abs(known.residual(i)[0] - value) <= Z90 * spread))
    return found


# --- bases
@given(st.integers(1, 10**7))
def test_a_plain_base_grows_with_its_work(rows):
    base = BaseTime(1e-6, 1e14, 1e12)
    assert base.seconds(Linear(rows, 64, 64)) <= base.seconds(Linear(rows + 1, 64, 64))


@pytest.mark.parametrize("op", [Linear(1, 4096, 1024), ops.build("rms_norm", {"rows": 1, "cols": 4096})])
def test_a_base_over_tokens_is_that_of_each_operator(op):
    base = type(op).base_class("torch")(1e-6, 6e14, 4e12)
    axis = next(iter(ops.axes(type(op))))
    over = base.over(lambda n: replace(op, **{axis: n}))
    for n in (1, 7, 64, 1000, 70_000):
        assert over(n) == base.seconds(replace(op, **{axis: n}))


@pytest.mark.parametrize("kernel", ["fa3", "cudnn", "flash"])
def test_a_base_over_sequences_is_that_of_each_attention(kernel):
    op = ops.build("attention", {"batch": 1, "heads": 32, "kv_heads": 8, "head_dim": 128, "q_len": 1, "kv_len": 1})
    base = type(op).base_class(kernel)(1e-6, 6e14, 4e12)
    over = base.over(op.sized)
    for sizes in ((1, 1, 1), (8, 1, 3000), (3, 700, 700), (1, 512, 9000)):
        assert over(*sizes) == base.seconds(op.sized(*sizes))
