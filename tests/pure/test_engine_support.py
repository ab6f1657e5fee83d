"""Engines that are too new for a GPU say so, by version."""

import pytest

from chip import engines
from chip.engines import number
from chip.hardware import gpus
from chip.predictor.notes import of_torch


@pytest.mark.parametrize(
    ("gpu", "version", "refused"),
    [
        ("gtx-1080-ti", "", True),
        ("gtx-1080-ti", "0.6.3", True),
        ("v100", "", True),
        ("v100", "0.14.0", False),
        ("v100", "0.26.0", True),
        ("t4", "", False),
        ("h100", "", False),
        ("mi300x", "", False),
        ("jetson-agx-orin", "", False),
    ],
)
def test_vllm_needs_a_capability_by_version(gpu, version, refused):
    assert bool(engines.get("vllm").too_old(gpus.spec(gpu), version)) is refused


def test_the_line_says_what_is_missing_and_what_to_do():
    line = engines.get("vllm").too_old(gpus.spec("gtx-1080-ti"))
    assert line == (
        "vllm 0.21.0 and later needs compute capability 7.5, NVIDIA GeForce GTX 1080 Ti 11GB has 6.1; "
        "--engine hf-eager runs"
    )
    assert "vllm before 0.21.0 ran on it" in engines.get("vllm").too_old(gpus.spec("v100"))
    assert engines.get("vllm").too_old(gpus.spec("p40"), "0.6.3").startswith("vllm needs compute capability 7.0")


@pytest.mark.parametrize("engine", ["hf-eager", "hf-graph"])
def test_transformers_runs_on_every_gpu(engine):
    assert not any(engines.get(engine).too_old(gpus.spec(name)) for name in gpus.spec_names())


def test_pascal_needs_an_older_build_of_torch():
    assert "cu126" in of_torch(gpus.spec("gtx-1080-ti"))
    assert of_torch(gpus.spec("t4")) == of_torch(gpus.spec("mi210")) == ""


def test_every_rule_has_a_source_and_the_last_holds_for_any_version():
    for rules in filter(None, (engines.get(name).NEEDS for name in engines.names())):
        assert all(len(r.source) > 10 for r in rules)
        assert rules[-1].since == "0"
        assert [number(r.since) for r in rules] == sorted((number(r.since) for r in rules), reverse=True)
