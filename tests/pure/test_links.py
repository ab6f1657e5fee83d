"""Collectives from measured points and from a formula that says so; pipelines and expert parallelism as arithmetic."""

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

import chip
from chip import stats
from chip.hardware import gpus, links
from chip.hardware.links import LinkCurve
from chip.predictor import parallel
from chip.predictor.parallel import ranks_reached
from chip.types import ChipError

MEASURED = ("a100", "b200", "h100", "h200", "l40s", "rtx-pro-6000-server")
CURVES = [c for gpu, kind in product(MEASURED, links.KINDS) for c in links.measured(gpu, kind).values()]


def test_every_bundled_system_has_every_collective_over_two_four_and_eight():
    for gpu, kind in product(MEASURED, links.KINDS):
        assert {ranks for _, _, ranks in links.measured(gpu, kind)} == {2, 4, 8}
    assert ("vllm", "graph", 8) in links.measured("h100", "all_reduce")


def test_sizes_left_out_are_interpolated_within_fifteen_percent():
    errors = []
    for c in CURVES:
        for i in range(1, len(c.sizes) - 1):
            others = LinkCurve(c.sizes[:i] + c.sizes[i + 1 :], c.times_s[:i] + c.times_s[i + 1 :])
            errors.append(abs(others.at(c.sizes[i])[0] / c.times_s[i] - 1))
    assert len(errors) > 1000
    assert stats.median(errors) < 0.10  # the points are thinned already: each left out is one that was needed


def test_a_point_is_itself_and_between_points_time_grows():
    curve = links.measured("h100", "all_reduce")["vllm", "graph", 2]
    for size, seconds in zip(*curve):
        found = links.collective("all_reduce", size, 2, "h100", "vllm")
        assert (found.seconds, found.source) == (seconds, "measured")
    a, b = curve.sizes[-2:]
    between = links.collective("all_reduce", (a + b) / 2, 2, "h100", "vllm")
    assert curve.times_s[-2] < between.seconds < curve.times_s[-1]
    assert between.source == "interpolated"
    assert between.low_s < between.seconds < between.high_s


def test_outside_the_points_time_has_a_floor_and_a_rate():
    curve = links.measured("l40s", "all_gather")["nccl", "graph", 4]
    assert curve.at(1) == (curve.times_s[0], "extrapolated")
    assert curve.at(10 * curve.sizes[-1]) == (pytest.approx(10 * curve.times_s[-1]), "extrapolated")


def test_what_was_not_measured_says_so():
    found = links.collective("all_reduce", 1e6, 2, "rtx-4090")
    assert found.source == "formula"
    assert "never measured" in found.note
    assert found.low_s < found.seconds < found.high_s
    assert "measured for 2, 4, 8 GPUs only" in links.collective("all_reduce", 1e6, 3, "h100").note
    assert links.collective("all_reduce", 1e6, 1, "h100").seconds == 0


def test_the_factors_on_the_formula_are_those_of_the_bundled_systems():
    ratios = {"nvlink": [], "pcie": []}
    for gpu, kind in product(MEASURED, links.KINDS):
        name, link = links.link_of(gpus.spec(gpu))
        for (_, context, ranks), curve in links.measured(gpu, kind).items():
            if context == "graph":
                ratios[name] += [t / links.formula(kind, size, ranks, link) for size, t in zip(*curve)]
    for name, kept in (("nvlink", links.NVLINK_KEPT), ("pcie", links.PCIE_KEPT)):
        assert [stats.quantile(ratios[name], q) for q in (0.05, 0.5, 0.95)] == pytest.approx(kept, rel=0.02)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("broadcast", 1e6, 2, "h100"), "no collective 'broadcast'"),
        (("all_reduce", 0, 2, "h100"), "bytes must be a positive number"),
        (("all_reduce", 1e6, 0, "h100"), "ranks must be at least 1"),
    ],
)
def test_bad_questions_are_refused(asked, message):
    with pytest.raises(ChipError, match=message):
        links.collective(*asked)


# -- pipelines
@given(st.integers(1, 200), st.integers(1, 16))
def test_every_layer_has_a_stage(layers, stages):
    if stages > layers:
        with pytest.raises(ChipError, match="--pp"):
            parallel.split_layers(layers, stages)
        return
    found = parallel.split_layers(layers, stages)
    assert (sum(found), len(found)) == (layers, stages)
    assert max(found) - min(found) <= 1
    assert found[-1] == layers // stages or layers % stages == 0  # the last has the head


def test_layers_left_over_go_before_the_last_stage():
    assert parallel.split_layers(61, 4) == (15, 15, 16, 15)
    assert parallel.split_layers(126, 4) == (31, 32, 32, 31)


def walked(stage_s, microbatches, hop_s):
    """The same pipeline, microbatch by microbatch: a stage starts when it is free and its input is there."""
    free = [0.0] * len(stage_s)
    end = 0.0
    for _ in range(microbatches):
        ready = 0.0
        for i, seconds in enumerate(stage_s):
            end = max(ready, free[i]) + seconds
            free[i] = ready = end
            if i + 1 < len(stage_s):
                free[i] = ready = end + hop_s  # it sends before it takes the next
    return end


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.integers(1, 8))
def test_an_uneven_pipeline_runs_at_the_rate_of_its_slowest_stage(stage_s, microbatches):
    assert parallel.pipeline_s(stage_s, microbatches) == pytest.approx(walked(stage_s, microbatches, 0.0))


def test_a_hop_costs_each_stage_but_the_last():
    assert parallel.pipeline_s([1.0, 1.0], 4, 0.1) == pytest.approx(walked([1.0, 1.0], 4, 0.1))
    assert parallel.pipeline_s([1.0], 4, 0.1) == 4


def test_decode_is_bound_by_the_round_trip_or_by_the_slowest_stage():
    assert parallel.pipeline_decode_s([1.0, 1.0], 0.0, 2) == 2
    assert parallel.pipeline_decode_s([1.0, 3.0], 0.0, 2) == 6
    assert parallel.pipeline_decode_s([1.0, 1.0], 0.5, 2) == 3
    assert parallel.pipeline_decode_s([1.0], 0.5, 1) == 1


# -- expert parallelism
def test_a_token_reaches_as_many_gpus_as_its_experts_lie_on():
    assert ranks_reached(8, 8, 8) == 8  # every expert
    assert ranks_reached(256, 1, 8) == 1
    assert ranks_reached(4, 2, 2) == pytest.approx(2 * (1 - 1 / 6))  # 1 of 6 pairs misses a given half
    missed = prod((224 - i) / (256 - i) for i in range(8))  # drawn one by one, none of the 32 of a given GPU
    assert ranks_reached(256, 8, 8) == pytest.approx(8 * (1 - missed))


def test_a_link_of_ones_own_replaces_the_measured_one():
    """Slower links never give faster answers, and one GPU has no use for any."""
    asked = {"engine": "vllm", "batch": 64, "tp": 2}
    times = [chip.predict("qwen3-32b", gpu=f"h100{link}", **asked) for link in ("@300GB/s", "@30GB/s", "@30GB/s+20us")]
    assert times[0].tpot_s < times[1].tpot_s < times[2].tpot_s
    assert any("30 GB/s and 20 us, as given" in note for note in times[2].notes)
    alone = [chip.predict("llama-3.1-8b", gpu=gpu).tpot_s for gpu in ("h100", "h100@1GB/s")]
    assert alone[0] == alone[1]
    stages = [chip.predict("qwen3-32b", gpu=gpu, pp=2).tpot_s for gpu in ("h100@300GB/s", "h100@1GB/s")]
    assert stages[0] < stages[1]


@pytest.mark.parametrize("name", ["h100@0GB/s", "h100@999999GB/s", "h100@5GB/s+9999999us", "h10O@5GB/s", "h100@5"])
def test_a_link_that_cannot_be_is_refused(name):
    with pytest.raises(ChipError, match=r"link has between|no GPU"):
        gpus.find(name)
