"""Engines that are too new for a GPU say so, by version."""

import pytest

from chip import engine_support, hardware
from chip.engine_support import note, too_old


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
    assert bool(too_old("vllm", hardware.spec(gpu), version)) is refused


def test_the_line_says_what_is_missing_and_what_to_do():
    line = too_old("vllm", hardware.spec("gtx-1080-ti"))
    assert line == (
        "vllm 0.21.0 and later needs compute capability 7.5, NVIDIA GeForce GTX 1080 Ti 11GB has 6.1; "
        "--engine hf-eager runs"
    )
    assert "vllm before 0.21.0 ran on it" in too_old("vllm", hardware.spec("v100"))
    assert too_old("vllm", hardware.spec("p40"), "0.6.3").startswith("vllm needs compute capability 7.0")


@pytest.mark.parametrize("engine", ["hf-eager", "hf-graph"])
def test_transformers_runs_on_every_gpu(engine):
    assert not any(too_old(engine, hardware.spec(name)) for name in hardware.spec_names())


def test_pascal_needs_an_older_build_of_torch():
    assert "cu126" in note(hardware.spec("gtx-1080-ti"))
    assert note(hardware.spec("t4")) == note(hardware.spec("mi210")) == ""


def test_every_rule_has_a_source_and_the_last_holds_for_any_version():
    for rules in engine_support.NEEDS.values():
        assert all(len(r.source) > 10 for r in rules)
        assert rules[-1].since == "0"
        assert [engine_support.number(r.since) for r in rules] == sorted(
            (engine_support.number(r.since) for r in rules), reverse=True
        )
