"""Quantised models that were really run on an H200, and what is predicted of them."""

from pathlib import Path

import pytest

from chip import stats
from chip.types import ChipError
from chip.validate.judge import judge, read

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "h200" / "quantised"


def test_models_kept_back_are_predicted_from_points_of_others():
    found = judge(read([FOLDER / f"vllm-{name}.json" for name in ("kept", "fp8-2", "formats-2")]), "h200")
    assert len({(p.model, p.scenario.dtype) for p in found.points}) == 6
    steps = [abs(p.error) for p in found.points if p.metric == "tpot"]
    first = [abs(p.error) for p in found.points if p.metric == "ttft" and p.scenario.batch * p.scenario.prompt >= 4096]
    room = [abs(p.error) for p in found.points if p.metric == "kv_cache_tokens"]
    assert (len(steps), len(first), len(room)) == (36, 24, 36)
    assert stats.median(steps) < 0.03
    assert stats.quantile(steps, 0.9) < 0.06
    assert stats.median(first) < 0.04
    assert stats.quantile(first, 0.9) < 0.09
    assert max(room) < 0.01
    energy = [abs(p.error) for p in found.points if p.metric == "joules_per_token"]
    assert stats.median(energy) < 0.06
    assert stats.quantile(energy, 0.9) < 0.2


def test_runs_that_points_were_read_out_of_are_no_judges():
    with pytest.raises(ChipError, match="is among the inputs of"):
        judge(read([FOLDER / "vllm-fp8.json"]), "h200")
