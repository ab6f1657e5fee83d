"""The share of its roof that an operator reaches, where it depends on the operator, and the answers made of it."""

import pytest
from asking import answer
from round_profiles import ROUND, round_profile, write_profile

from chip import ops
from chip.hardware import gpus
from chip.ops.linear import Linear
from chip.predictor import operator
from chip.predictor.roof import MeasuredShares, roof_of
from chip.types import Ceiling, RoofShare

SIDES = (512, 1024, 2048, 4096)


def shares_of(rows, dtype="fp32"):
    """`rows`: the share that products of so many rows reach."""
    costs = {m: [Linear(m, side, side, dtype).cost() for side in SIDES] for m in rows}
    return tuple(RoofShare(c.flops, c.bytes, share) for m, share in rows.items() for c in costs[m])


def cpu(tmp_path, **changes):
    """1 TB/s read and half of that copied, 10 TFLOP/s in fp32, 100 in bf16: its products are of two populations."""
    made = {k: Ceiling(v, v, v, unit, "made up for tests") for k, (v, unit) in ROUND.items() if k != "launch_graph"}
    made["hbm_copy"] = Ceiling(5e11, 5e11, 5e11, "B/s", "made up for tests")
    made["launch_stream"] = Ceiling(1e-6, 1e-6, 1e-6, "s", "made up for tests")
    factors = {
        "gemm_memory": Ceiling(0.4, 0.3, 1.0, "1", "median of two populations"),
        "memory_kernel": Ceiling(0.25, 0.25, 0.25, "1", "made up for tests"),
    }
    shares = {"matmul_fp32": shares_of({1: 0.95, 8: 0.4, 16: 0.3, 256: 0.9})}
    settings = {"kind": "cpu", "spec": "", "ceilings": made, "factors": factors, "shares": shares}
    gpus.find.cache_clear()  # each writes the same file anew
    return write_profile(tmp_path / "cpu.json", round_profile(**{**settings, **changes}))


def seconds(gpu, **axes):
    found = operator.answer({"op": "linear", "gpu": gpu, "n": 3072, "k": 1536, "dtype": "fp32", **axes})
    low, high = (us * 1e-6 for us in found["interval"])
    return found["us"] * 1e-6, low, high


def of_roof(gpu, m):
    """The share of the roof that is answered, with bounds."""
    cost = Linear(m, 3072, 1536, "fp32").cost()
    roof_s = max(cost.flops / 1e13, cost.bytes / 1e12)
    value, low, high = seconds(gpu, m=m)
    return tuple(roof_s / (s - 1e-6) for s in (value, high, low))


def test_two_populations_are_told_apart(tmp_path):
    gpu = cpu(tmp_path)
    for m, share in ((1, 0.95), (8, 0.4), (16, 0.3), (256, 0.9)):
        value, low, high = of_roof(gpu, m)
        assert value == pytest.approx(share, rel=0.05), m
        assert low < share < high < 2 * share


def test_between_two_populations_the_interval_reaches_both(tmp_path):
    value, low, high = of_roof(cpu(tmp_path), 3)
    assert low < 0.4 < value < 0.95 < high


def test_a_product_in_fp32_is_read_at_the_read_bandwidth(tmp_path):
    """Not at the copy bandwidth, times the share that norms and sums get of it."""
    gpu = cpu(tmp_path, shares={})
    cost = Linear(1, 3072, 1536, "fp32").cost()
    assert seconds(gpu, m=1)[0] == pytest.approx(1e-6 + cost.bytes / (1e12 * 0.4))
    roof = roof_of(gpus.find(gpu))
    assert roof.moving(ops.build("linear", {"m": 1, "n": 1, "k": 1, "dtype": "fp32"})).value == 4e11
    assert roof.moving(ops.build("rms_norm", {"rows": 1, "cols": 1})).value == 5e11 * 0.25


def test_other_formats_take_the_shares_of_the_one_that_was_measured(tmp_path):
    gpu = cpu(tmp_path)
    cost = Linear(1, 3072, 1536, "bf16").cost()
    assert seconds(gpu, m=1, dtype="bf16")[0] == pytest.approx(1e-6 + cost.bytes / 1e12 / 0.95, rel=0.3)
    own = cpu(tmp_path, shares={"matmul_fp32": shares_of({1: 0.95}), "matmul_bf16": shares_of({1: 0.2}, "bf16")})
    assert seconds(own, m=1, dtype="bf16")[0] == pytest.approx(1e-6 + cost.bytes / 1e12 / 0.2, rel=0.05)


def test_one_measured_operator_is_not_certain():
    value, most, least = MeasuredShares([RoofShare(2e6, 1e6, 0.5)], True).of(2e6, 1e6)
    assert value == pytest.approx(0.5)
    assert least < 0.45
    assert most > 0.55


def test_what_a_calibration_doubts_is_a_note_of_its_answers(tmp_path):
    said = "disturbed: other processes used 1.4 of 2 CPUs while it was timed (30 of 45 s)"
    gpu = cpu(tmp_path, flags=(said,))
    note = f"round was disturbed while it was calibrated: {said.removeprefix('disturbed: ')}; calibrate it again"
    assert note in answer("smollm2-135m", gpu, engine="hf-eager", dtype="fp32")["notes"]
    assert operator.answer({"op": "linear", "gpu": gpu, "m": 1, "n": 64, "k": 64})["notes"] == [note]
