"""Quantised models that were really run on an H200, and what is predicted of them."""

from pathlib import Path

import pytest

from chip import stats
from chip.predict.clock import Settling
from chip.types import ChipError
from chip.validate.judge import judge, read

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "h200" / "quantised"
DOCUMENT = " ".join((ROOT / "docs" / "quantisation.md").read_text(encoding="utf-8").split())


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


def test_once_the_clock_has_recovered_steps_are_met_without_it(monkeypatch):
    """The 9th step to the last but one, of 16 after a prompt: what docs/quantisation.md says of them."""
    monkeypatch.setattr(Settling, "recovery", lambda *_: 0.0)
    sources = read([FOLDER / f"vllm-{name}.json" for name in ("kept", "fp8-2", "formats-2")])
    late = {
        (run.model, run.scenario): stats.median([stats.median(steps[8:-1]) for steps in run.step_ns]) * 1e-9
        for source in sources
        for run in source.ok
    }
    points = [p for p in judge(sources, "h200").points if p.metric == "tpot"]
    errors = [abs(p.predicted / late[p.model, p.scenario] - 1) for p in points]
    assert len(errors) == 36
    assert f"off by {stats.median(errors):.1%}, {stats.quantile(errors, 0.9):.1%}.".replace("%", " %") in DOCUMENT


def test_runs_that_points_were_read_out_of_are_no_judges():
    with pytest.raises(ChipError, match="is among the inputs of"):
        judge(read([FOLDER / "vllm-fp8.json"]), "h200")
