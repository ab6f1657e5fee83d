"""Intervals are as wide as predictions err for the kind of GPU: one rule, derived from the index of validated runs."""

import importlib.util
from pathlib import Path

import pytest
from asking import predict

import chip
from chip.decoders import library
from chip.files import artifact
from chip.hardware import gpus as hardware
from chip.predictor import basis, validated_runs
from chip.predictor.basis import DATASHEET, IMPORTED, MEASURED, OTHER_VENDOR, SAME_CHIP, kind_of, scale_of
from chip.types import Scenario

ROOT = Path(__file__).parents[2]
RENEW = "python benchmarks/interval_classes.py makes it anew"


@pytest.fixture(scope="module")
def derive():
    path = ROOT / "benchmarks" / "interval_classes.py"
    spec = importlib.util.spec_from_file_location("interval_classes", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows():
    lines = artifact.read_text(basis.FILE).splitlines()
    return [line.split(";") for line in lines if not line.startswith(("#", "kind;"))]


def test_kinds_of_gpus():
    kinds = {name: kind_of(hardware.find(name)) for name in ("h200", "h100", "a100-40gb", "mi300x", "sm_90:80GB")}
    assert list(kinds.values()) == [MEASURED, IMPORTED, SAME_CHIP, OTHER_VENDOR, kinds["sm_90:80GB"]]
    assert kinds["sm_90:80GB"] in (IMPORTED, DATASHEET)


def test_the_file_follows_the_rule(rows):
    """Held by the intervals as they are, or widened to 90 %, or narrowed to 97 %."""
    for kind, gpus, scale, _, _, plain, held in rows:
        scale, plain, held = float(scale), float(plain), float(held)
        assert (scale == 1) == (0.80 <= plain <= 0.97), (kind, gpus)
        assert 0.80 <= held <= 0.97, (kind, gpus)
        assert scale >= 1 or plain > 0.97
        assert scale <= 1 or (plain < 0.80 and held >= 0.90)


def test_the_shares_are_those_of_the_predictor_and_the_index(derive, rows):
    found = derive.runs()
    assert len(found) == len(rows), RENEW
    for kind, gpus, scale, runs, _, _, held in rows:
        those = found[kind, gpus == "several"]
        assert len(those) == int(runs), RENEW
        assert derive.share(those[::3], float(scale)) == pytest.approx(float(held), abs=0.05), f"{kind}: {RENEW}"


def test_no_gpu_has_a_scale_of_its_own():
    held = {line.gpu for line in validated_runs.settings()}
    by_kind = {}
    for name in held:
        h = hardware.find(name)
        by_kind.setdefault((kind_of(h), True), set()).add(scale_of(h, True))
    assert all(len(scales) == 1 for scales in by_kind.values())


def test_several_gpus_are_no_surer_than_those_that_were_held_against_runs():
    assert scale_of(hardware.find("h200"), True) == scale_of(hardware.find("h100"), True) > 1


def test_the_scale_is_of_the_logarithm_and_of_the_device_alone():
    decoder, s = library.find("llama-3.1-8b"), Scenario(64, 1024, 64, "bf16")
    one, three = (predict(decoder, "h100", "vllm", s, interval_scale=k) for k in (1.0, 3.0))
    assert one.tpot_s == three.tpot_s
    (low, high), (lower, higher) = one.interval["tpot_s"], three.interval["tpot_s"]
    assert lower < low < high < higher
    assert higher / one.tpot_s == pytest.approx((high / one.tpot_s) ** 3, rel=0.1)
    host = [predict(library.find("tinyllama-1.1b"), "h100", "hf-eager", Scenario(1, 64, 32, "bf16"),
                    interval_scale=k).interval["tpot_s"] for k in (1.0, 3.0)]  # fmt: skip
    assert host[0] == pytest.approx(host[1], rel=0.05), "the host limits: the device's interval is not seen"


def test_several_gpus_over_pcie_say_that_machines_differ():
    for gpu, says in (("rtx-pro-6000-server", True), ("h100", False)):
        noted = " ".join(chip.predict("llama-3.1-8b", gpu=gpu, tp=2).notes)
        assert ("links over PCIe differ between machines" in noted) == says
