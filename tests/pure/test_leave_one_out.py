"""A model predicted from points that were fitted without its own shapes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from asking import predict
from test_operator_accuracy import id_of_records
from test_validate import judged, synthetic

from chip import engines
from chip.decoders import library
from chip.decoders.lower import body
from chip.dtypes import precision
from chip.files import measurements
from chip.files.runs import Run
from chip.hardware import gpus, points
from chip.predictor.stages import Stage
from chip.show.cli.validate_text import unseen_table
from chip.types import ChipError, Scenario
from chip.validate import judge, unseen
from chip.validate.classes import intervals
from chip.validate.points import Point
from chip.validate.provenance import rests_on

RECORDS = sorted((Path(__file__).parents[2] / "results" / "h200").glob("*.jsonl"))


@pytest.fixture(scope="module")
def fitted_on():
    inputs = rests_on("h200", "vllm")[2].inputs
    return [path for path in RECORDS if id_of_records(path) in inputs]


def test_shapes_of_a_model_whatever_its_tokens():
    found = unseen.shapes(library.find("llama-3.1-8b"), "vllm", "bf16", 1)
    assert {("linear", 6144, 4096), ("linear", 28672, 4096), ("linear", 128256, 4096)} <= found
    assert ("attention", 32, 8, 128) in found
    assert ("embedding", 4096) in found
    assert ("linear", 4096, 4096) in unseen.shapes(library.find("llama-3.1-8b"), "hf-eager", "bf16", 1)


@pytest.mark.parametrize("engine", engines.names())
def test_every_operator_with_points_is_left_out(engine):
    """Else a model would still be predicted from its own shapes."""
    known = set(points.kinds(gpus.POINTS / "h200"))
    d = library.find("llama-3.1-8b")
    for decode in (True, False):
        program = engines.get(engine).rewrite(body(d, 1, precision("bf16"), 1), decode)
        kinds = {c.op.kind for b in program.blocks for c in b.calls}
        left_out = {one[0] for one in unseen.shapes(d, engine, "bf16", 1)}
        assert kinds & known <= left_out
    assert ("sampling", 128256) in unseen.shapes(d, engine, "bf16", 1)


@pytest.fixture(scope="module")
def measured(fitted_on):
    return unseen.read(fitted_on, "h200")


def test_only_what_the_points_were_made_from(round_gpu, fitted_on, measured):
    assert len(measured) > 1000
    other = next(path for path in RECORDS if path not in fitted_on)
    with pytest.raises(ChipError, match=rf"{other.name}: the points in h200 were not made from it"):
        unseen.read([other], "h200")
    with pytest.raises(ChipError, match=r"was also made from [0-9a-f]{16}; give these"):
        unseen.read(fitted_on[:-1], "h200")
    with pytest.raises(ChipError, match="has no points of operators"):
        unseen.read(fitted_on, round_gpu)


def test_a_model_is_predicted_without_its_shapes(measured):
    """With a stand-in for the fit that notes what it was given; tests/device has a real one."""
    runs = [synthetic("h200", model, device="NVIDIA H200") for model in ("llama-3.1-8b", "qwen2.5-7b")]
    given = []

    def fit(kept):
        given.append({unseen.shape(measurements.operator(m.op)) for m in kept})
        return points.read(gpus.POINTS / "h200" / "attention.csv").groups

    elsewhere = replace(runs[0], engine="nobody-runs-it")  # left out, not in the way
    both = list(unseen.leave_one_model_out(judged("h200", *runs, elsewhere), measured, fit))
    assert [u.model for u in both] == ["llama-3.1-8b", "qwen2.5-7b"]
    llama, qwen = given
    assert not llama & unseen.shapes(library.find("llama-3.1-8b"), "vllm", "bf16", 1)
    assert llama != qwen
    for u in both:
        assert u.left_out > 0
        assert {p.model for p in (*u.seen, *u.unseen)} == {u.model}
        as_is = predict(library.find(u.model), "h200", "vllm", runs[0].scenario, Stage.POINTS)
        assert u.seen[0].predicted == pytest.approx(as_is.prefill.seconds, rel=1e-5)
        assert u.unseen[0].predicted != u.seen[0].predicted  # linears fell back to the roofline
    rows = [line.split() for line in unseen_table(both).splitlines()[2:]]
    assert {row[0] for row in rows} == {"all", "llama-3.1-8b", "qwen2.5-7b"}
    assert all("vLLM" in row or "vllm" in row for row in rows)


@pytest.mark.parametrize(
    ("engine", "variant", "chosen"),
    [
        ("hf-eager", "sdpa=flash", {"sdpa": "flash"}),
        ("hf-eager", "a=b,sdpa=cudnn", {"sdpa": "cudnn"}),
        ("hf-eager", "sdpa=math", {}),
        ("hf-eager", "", {}),
        ("vllm", "sdpa=flash", {}),
    ],
)
def test_a_run_is_predicted_with_the_backend_it_had(engine, variant, chosen):
    assert dict(judge.settings_of(Run("m", engine, variant, Scenario(1, 1, 1), "failed", "made up"))) == chosen


@pytest.mark.parametrize(("held", "met"), [(84, False), (85, True), (97, True), (98, False)])
def test_coverage_of_each_metric_is_gated(held, met):
    """A metric whose intervals hold too few, or all, is not made up for by another."""

    def point(metric, inside):
        measured = 1.0 if inside else 2.0
        return Point("chip", "m", "vllm", "", Scenario(1, 1, 2), metric, 1.0, 0.9, 1.1, measured, "")

    points = [point("ttft", i < held) for i in range(100)] + [point("tpot", i < 90) for i in range(100)]
    found = intervals(points)["metrics"]
    assert (found["ttft"]["met"], found["tpot"]["met"]) == (met, True)
    assert intervals(points[1:])["metrics"]["ttft"]["met"] is None
