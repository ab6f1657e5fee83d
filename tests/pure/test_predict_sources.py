"""Where the numbers of a prediction come from: measured GPUs, datasheets, reference hosts, GPUs by capability."""

import pytest
from asking import BARE, TIMES, answer
from folding import each
from round_profiles import round_profile, write_profile

from chip import engines
from chip.hardware import gpus
from chip.hardware.points import Library
from chip.ops.quantised import PackedLinear
from chip.predictor import request, sustained
from chip.predictor.estimator import Estimator, estimator_of
from chip.predictor.roof import reference, roof_of
from chip.predictor.stages import Stage
from chip.types import Ceiling

RUNS_AS = engines.get("vllm").runs_as(9.0)


def test_a_gpu_never_measured_says_so():
    a = answer(gpu="a100")
    assert set(a["sources"]) == {"datasheet", "imported", "engine"}  # points that others measured
    assert set(answer(gpu="rtx-4090")["sources"]) == {"datasheet", "engine"}
    assert set(request.answer({"model": "gpt2", "gpu": "a100"}, stage=BARE)["sources"]) == {"datasheet"}
    assert [n for n in a["notes"] if n.startswith("a100 was never calibrated: products, attention, experts")]
    assert any(n.startswith("l4 was never calibrated: ceilings are the") for n in answer(gpu="l4")["notes"])


def test_a_measured_gpu_says_so(round_gpu):
    a = answer(gpu=round_gpu, batch=64, prompt=128)
    assert set(a["sources"]) == {"roofline", "engine"}
    assert a["notes"] == []
    assert set(answer(gpu=round_gpu, tp=2)["sources"]) == {"roofline", "engine", "datasheet"}  # the link's


def test_a_gpu_without_terms_of_its_own_is_predicted_with_the_reference_hosts():
    """They are a property of the host. A wait for it says whose it is."""
    a = answer("tinyllama-1.1b", "a100", prompt=16)
    assert a["sources"]["engine"] > 0.05
    assert [n for n in a["notes"] if "reference host" in n and "`chip calibrate --engine vllm`" in n]
    alone = request.answer({"model": "tinyllama-1.1b", "gpu": "a100", "prompt": 16}, stage=Stage.POINTS)
    assert alone["tpot_ms"] < a["tpot_ms"]


def test_a_base_does_not_depend_on_what_was_asked_before():
    """Weights of 4 and 8 bits are multiplied alike, by kernels of their own."""
    small, wide = (PackedLinear(64, 4096, 4096, weight_dtype=w) for w in ("int4", "int8"))
    h100, like = gpus.find("h100"), estimator_of(gpus.find("h200"), RUNS_AS)
    made = [Estimator(roof_of(h100), Library(h100.points), RUNS_AS, like) for _ in range(2)]
    made[1].bases.of(small, "")
    assert made[1].bases.of(wide, "") == made[0].bases.of(wide, "") != made[0].bases.of(small, "")


@each(gpus.spec_names())
def test_every_gpu_predicts_within_its_own_bounds(name):
    dtype = "bf16" if "matmul_bf16" in gpus.spec(name).ceilings else "fp16"
    engine = "hf-eager" if engines.get("vllm").too_old(gpus.spec(name)) else "vllm"
    a = answer("llama-3.2-1b", name, dtype=dtype, engine=engine)
    assert all(a["interval"][k][0] <= a[k] <= a["interval"][k][1] for k in TIMES)
    roof = roof_of(gpus.find(name))
    for r in (*roof.compute.values(), roof.weights, roof.stream):
        assert 0 < r.low <= r.value <= r.high
    floor_s = a["memory"]["weights_bytes"] / gpus.spec(name).ceilings["hbm"].value
    assert a["tpot_ms"] / 1e3 >= 0.9 * floor_s  # every weight is read once a step


@pytest.fixture
def measured_h200(tmp_path, monkeypatch):
    """A bundled profile of the H200 alone: half its memory rate, four fifths of bf16, more than promised in fp32."""
    promised = {name: q.value for name, q in gpus.spec("h200").ceilings.items()}
    kept = {"hbm_read": 0.5 * promised["hbm"], "hbm_copy": 0.4 * promised["hbm"], "launch_graph": 1e-6}
    kept |= {"matmul_bf16": 0.8 * promised["matmul_bf16"], "matmul_fp32": 1.25 * promised["matmul_fp32"]}
    ceilings = {name: Ceiling(v, 0.9 * v, 1.1 * v, "?", "made up") for name, v in kept.items()}
    write_profile(tmp_path / "h200.json", round_profile(name="h200", spec="h200", ceilings=ceilings))
    monkeypatch.setattr(gpus, "PROFILES", tmp_path)
    for cached in (gpus.find, reference):
        cached.cache_clear()
    yield
    for cached in (gpus.find, reference):
        cached.cache_clear()


@pytest.mark.usefixtures("measured_h200")
def test_a_datasheet_is_believed_as_far_as_a_measured_one_was():
    roof = roof_of(gpus.find("a100"))
    promised = {name: q.value for name, q in gpus.spec("a100").ceilings.items()}
    hbm = promised["hbm"]
    assert roof.weights == pytest.approx((0.5 * hbm, 0.25 * hbm, hbm))
    assert roof.stream == pytest.approx((0.4 * hbm, 0.16 * hbm, hbm))
    tensor, vector = promised["matmul_bf16"], promised["matmul_fp32"]
    share = 0.8 * sustained.share_of_peak(gpus.find("a100")) / sustained.share_of_peak(gpus.find("h200"))
    assert 0.9 < share < 1  # an A100 sustains more of its peak than an H200
    assert roof.compute["matmul_bf16"] == pytest.approx((share * tensor, share**2 * tensor, tensor))
    assert roof.compute["matmul_fp16"] == roof.compute["matmul_bf16"]  # which was not measured
    assert roof.compute["matmul_fp32"] == pytest.approx((1.25 * vector, 1.25 * vector, 1.25 * vector))
    assert roof.launch_s == pytest.approx((1e-6, 0.9e-6, 1.1e-6))
    assert roof.source == "datasheet"
    assert "times the share of its datasheet that a measured NVIDIA H200" in roof.basis
    assert roof.ridge("matmul_bf16") == tensor / hbm
    assert roof_of(gpus.find("h200")).source == "roofline"


def test_by_capability_stands_in_for_the_nearest():
    a, b = answer(gpu="sm_90:80GB"), answer(gpu="h100")
    assert a["ttft_ms"] == pytest.approx(b["ttft_ms"], rel=0.2)  # of a GPU known by name there are points
    assert a["memory"]["capacity_bytes"] == 80 * 2**30
    assert [n for n in a["notes"] if "datasheet of" in n]
