"""Roofs from profiles and datasheets, points under them, and what is said about the points."""

import pytest

from chip import ops
from chip.explain import advice
from chip.files import measurements
from chip.hardware import gpus, roofline
from chip.types import Ceiling, ChipError, HardwareProfile, Measurement


def ceiling(value, unit="B/s"):
    return Ceiling(value, value * 0.99, value * 1.01, unit, "made up")


CEILINGS = {
    "matmul_bf16": ceiling(800e12, "FLOP/s"),
    "matmul_bf16_settled": ceiling(650e12, "FLOP/s"),
    "matmul_fp32": ceiling(50e12, "FLOP/s"),
    "matmul_fp8": ceiling(1300e12, "FLOP/s"),
    "vector_fp32": ceiling(40e12, "FLOP/s"),
    "hbm_read": ceiling(4e12),
    "hbm_copy": ceiling(4.2e12),
    "hbm_write": ceiling(3e12),
    "hbm_mix_3to1": ceiling(3.9e12),
    "l2_read": ceiling(10e12),
    "launch_graph": ceiling(1e-6, "s"),
}
PROFILE = HardwareProfile("x", "Test GPU", "cuda", "", 132, 80 * 2**30, 50 * 2**20, CEILINGS)
ROOFS = roofline.from_profile(PROFILE)


def measured(kind, seconds, context="cold", implementation="torch", **axes):
    op = ops.build(kind, axes)
    samples = tuple(round(seconds * 1e9) for _ in range(11))
    return Measurement(measurements.record(op), implementation, context, "ok", samples_ns=samples, device="Test GPU")


def at(kind, seconds, **kwargs):
    return roofline.place(measured(kind, seconds, **kwargs), ROOFS)


def test_roofs_of_a_profile():
    assert ROOFS.source == "measured"
    assert ROOFS.compute["matmul_bf16"].settled == 650e12
    assert ROOFS.compute["matmul_fp32"].settled is None
    assert "matmul_bf16_settled" not in ROOFS.compute
    assert ROOFS.memory["hbm"].value == 4.2e12
    assert ROOFS.ridge("matmul_bf16", "hbm") == pytest.approx(800 / 4.2)
    assert ROOFS.ridge("matmul_bf16", "l2") == 80
    assert dict(ROOFS.mixes) == {1.0: 4e12, 0.5: 4.2e12, 0.0: 3e12, 0.75: 3.9e12}


@pytest.mark.parametrize(
    ("kind", "bandwidth"), [("copy", 4.2e12), ("fill", 3e12), ("sampling", 4e12), ("add", 3.9e12), ("rms_norm", 4.2e12)]
)
def test_bandwidth_follows_the_mix_of_reads_and_writes(kind, bandwidth):
    """add reads two thirds: the measured three to one is nearer than one to one."""
    assert ROOFS.bandwidth(ops.build(kind, {"rows": 4096, "cols": 4096}).cost()) == bandwidth


def test_every_bundled_datasheet_gives_roofs():
    for name in gpus.spec_names():
        roofs = roofline.from_spec(gpus.spec(name))
        assert roofs.source == "datasheet"
        assert roofs.compute_roof(ops.build("rms_norm", {"rows": 1, "cols": 1})).value > 0


def test_a_product_at_half_its_roof():
    p = at("linear", 2 * 2 * 4096**3 / 800e12, m=4096, n=4096, k=4096)
    assert p.bound == "compute"
    assert p.share == pytest.approx(0.5, rel=1e-3)
    assert p.flops_per_s == pytest.approx(400e12, rel=1e-3)
    assert p.settled_share == pytest.approx(0.5 * 800 / 650, rel=1e-3)
    assert advice.verdict(p) == "compute-bound, 50% of the bf16 roof (62% of the settled one)"
    assert "tiles that fit" in advice.help_for(p, ROOFS)  # 512 tiles of 128 x 256 fill their four waves


def test_waves_are_named_only_where_they_explain_it():
    p = at("linear", 3 * 2 * 1536 * 3072 * 8192 / 800e12, m=1536, n=3072, k=8192)  # 144 tiles: two waves, 55 % full
    assert "144 tiles of 128x256 on 132 SMs are 2 waves 55% full" in advice.help_for(p, ROOFS)


def test_vector_operators_stand_under_the_vector_roof():
    p = at("gelu", 1e-4, rows=4096, cols=8192)
    assert p.compute.name == "vector fp32"
    assert p.bound == "memory"


def test_memory_bound_at_its_roof_and_far_below():
    bytes_moved = ops.build("softmax", {"rows": 8192, "cols": 8192}).cost().bytes
    near = at("softmax", bytes_moved / 4.2e12 / 0.92, rows=8192, cols=8192)
    assert near.share == pytest.approx(0.92, rel=1e-3)
    assert "only fewer bytes help" in advice.help_for(near, ROOFS)
    far = at("softmax", bytes_moved / 4.2e12 / 0.4, rows=8192, cols=8192)
    assert advice.verdict(far) == "memory-bound, 40% of the HBM roof"
    assert "2.5x its bytes" in advice.help_for(far, ROOFS)


def test_a_roof_below_what_was_measured_is_a_calibration_to_repeat():
    """4.9 times the roof is nothing that clocks make; a few per cent are."""
    p = at("linear", 2 * 4096**3 / 800e12 / 4.9, m=4096, n=4096, k=4096)
    assert advice.verdict(p) == "compute-bound at 4.9 times the bf16 roof: that roof is too low"
    assert "calibrate again" in advice.help_for(p, ROOFS)
    near = at("linear", 2 * 4096**3 / 800e12 / 1.05, m=4096, n=4096, k=4096)
    assert advice.verdict(near) == "compute-bound, 105% of the bf16 roof: above it"
    assert "at the roof, within what clocks vary" in advice.help_for(near, ROOFS)


def test_small_work_is_told_how_much_more_would_help():
    p = at("softmax", 6e-6, rows=1024, cols=2048)  # 8.4 MB: 2 us at the roof, 4 us of launch, ramp and tail
    assert "18x the work" in advice.help_for(p, ROOFS)


def test_composed_operators_are_told_what_fusing_gives():
    bytes_moved = ops.build("silu_mul", {"rows": 8192, "cols": 8192}).cost().bytes
    p = at("silu_mul", bytes_moved / 3.9e12 * 2, rows=8192, cols=8192)
    assert "2 kernels that move 1.7x its bytes" in advice.help_for(p, ROOFS)
    fused = at("silu_mul", bytes_moved / 3.9e12 * 2, rows=8192, cols=8192, implementation="triton")
    assert "kernels" not in advice.help_for(fused, ROOFS)


def test_launch_bound():
    p = at("add", 1.3e-6, rows=1, cols=4096)
    assert p.bound == "launch"
    assert "no kernel takes under 1 us" in advice.help_for(p, ROOFS)


def test_decode_linear_is_told_how_many_rows_are_free():
    op = ops.build("linear", {"m": 1, "n": 28672, "k": 4096})
    p = at("linear", op.cost().bytes / 4e12 / 0.93, m=1, n=28672, k=4096)
    text = advice.help_for(p, ROOFS)
    assert "the weight is 100% of its bytes" in text
    assert "m = 190" in text  # 800e12 x 2 bytes / (2 x 4.2e12)


def test_faster_than_memory_is_served_from_cache():
    bytes_moved = ops.build("add", {"rows": 2048, "cols": 4096}).cost().bytes
    p = at("add", bytes_moved / 6e12, rows=2048, cols=4096)
    assert p.cached
    assert p.level == "l2"
    assert p.share == pytest.approx(0.6, rel=1e-2)
    assert "served from cache" in advice.verdict(p)


def test_hot_is_held_against_the_cache_only_where_it_fits():
    small = at("add", 1e-5, context="hot", rows=1024, cols=4096)
    large = at("add", 1e-3, context="hot", rows=65536, cols=4096)
    assert (small.level, large.level) == ("l2", "hbm")
    assert not small.cached


def test_host_time_is_called_so():
    p = at("add", 30e-6, context="host", rows=1, cols=4096)
    assert p.bound != "launch"
    assert "host" in advice.verdict(p)


def test_at_the_roof_names_the_next_narrower_type():
    p = at("linear", 2 * 8192**3 / 800e12 / 0.96, m=8192, n=8192, k=8192)
    assert advice.help_for(p, ROOFS) == "at the roof: fewer FLOPs, or a narrower type (fp8's roof is 1.6x as high)"


def test_no_ceiling_for_a_dtype_is_one_line():
    with pytest.raises(ChipError, match="no measured ceiling matmul_fp16 for linear"):
        at("linear", 1e-3, m=1, n=1, k=1, dtype="fp16")


def test_labels_are_short_and_tell_operators_apart():
    assert roofline.label(ops.build("linear", {"m": 1, "n": 2, "k": 3})) == "linear 1x2x3"
    axes = {"batch": 1, "heads": 32, "kv_heads": 8, "head_dim": 128, "q_len": 1, "kv_len": 64}
    assert roofline.label(ops.build("attention", axes)) == "attention b1 h32/8 d128 q1 kv64"
    assert roofline.label(ops.build("add", {"rows": 4, "cols": 5, "dtype": "fp32"})) == "add 4x5 fp32"


@pytest.mark.parametrize("kind", sorted(advice.COMPOSED))
def test_composed_operators_exist(kind):
    assert kind in ops.names()
