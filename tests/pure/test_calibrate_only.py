"""What 84 seconds of `chip calibrate` on an H200 predict, with no other measurement of an operator."""

from pathlib import Path

import pytest
from doc_figures import factors

from chip import stats
from chip.hardware import gpus
from chip.predictor import estimator
from chip.predictor.stages import Stage
from chip.validate import judge
from chip.validate.classes import CLASSES

RECORDS = Path(__file__).parents[2] / "results" / "h200"


@pytest.mark.parametrize(
    ("title", "median", "most"), [("vLLM TPOT, GPU-bound", 0.04, 0.14), ("vLLM TTFT, >= 4096 tokens", 0.04, 0.12)]
)
def test_runs(title, median, most):
    """Asked: 6 and 15 % per output token, 8 and 20 % to the first."""
    found = judge.judge(judge.read([RECORDS / "runs"]), "h200", "vllm", stage=Stage.CALIBRATE_ONLY)
    (of_class,) = [c for c in CLASSES if c.title == title]
    off = [abs(p.error) for p in found.points if of_class.has(p)]
    assert stats.median(off) < median
    assert stats.quantile(off, 0.9) < most


def test_operators():
    """Asked: 8 and 25 %."""
    timed = factors._operators(timed=True)
    assert stats.median(timed) < 0.065
    assert stats.quantile(timed, 0.9) < 0.25


def test_the_file_of_a_calibration_answers_as_the_stage_does():
    of_file, bundled = gpus.find(str(RECORDS / "calibration-3.json")), gpus.find("h200")
    assert of_file.points == ()
    alone, known = (estimator.library(h, Stage.CALIBRATE_ONLY) for h in (of_file, bundled))
    assert alone.bases("linear") == known.bases("linear")
    assert alone.bases("attention") == known.bases("attention")
