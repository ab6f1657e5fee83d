"""Calibrate a CPU, then predict on it: recorded calibrations of two and four cores against runs on the same cores."""

from pathlib import Path

import pytest

from chip.validate import judge

CPU = Path(__file__).parents[2] / "results" / "cpu"


@pytest.mark.parametrize(
    ("cores", "metric", "worst", "outside"),
    [
        (2, "ttft", 0.17, 0),
        (2, "tpot", 0.19, 0),
        (4, "ttft", 0.39, 2),  # missed: products of a prompt take longer in a model than by themselves
        (4, "tpot", 0.24, 0),
    ],
)
def test_a_model_on_a_calibrated_cpu(cores, metric, worst, outside):
    """Time to first token and per output token in fp32 and bf16, prompts of 128 and 512 tokens."""
    sources = judge.read([CPU / f"runs-{cores}-cores-{dtype}.json" for dtype in ("fp32", "bf16")])
    found = judge.judge(sources, str(CPU / f"calibration-{cores}-cores.json"))
    points = [p for p in found.points if p.metric == metric]
    assert len(points) == 4
    assert max(abs(p.predicted / p.measured - 1) for p in points) < worst
    assert sum(not p.low <= p.measured <= p.high for p in points) == outside
