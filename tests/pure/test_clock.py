"""The clock: points that were timed at its boost among those that were not, and decode steps while it recovers."""

from __future__ import annotations

from math import log
from pathlib import Path

import pytest

import chip
from chip import stats
from chip.files import runs
from chip.predictor.clock import RECOVERY_S, Settling

H200 = Path(__file__).parents[2] / "results" / "h200" / "runs"

CLOCK = Settling(boost=0.17, measured=0.93, time_s=0.15, flop_per_s=6.5e14)


@pytest.mark.parametrize("rate", [1e14, 5.5e14, 6.5e14, 7.2e14, 8e14])
def test_a_burst_is_predicted_as_it_was_timed(rate: float) -> None:
    """A call timed rested is brought to the tables' clock, and a short prompt brings it back."""
    flops, seconds = 1e12, 1e12 / rate
    kept = CLOCK.from_rest(seconds, flops)
    back = kept * (1 + (CLOCK.factor(0.0) - 1) * CLOCK.limited(flops / kept))
    assert back == pytest.approx(seconds, rel=1e-6)
    assert kept >= seconds


def steps_s(model: str, batch: int, prompt: int) -> list[float]:
    """Medians of the decode steps of a run of hf-graph, in their order."""
    _, held = runs.read(H200 / "hf-1.json")
    found = next(
        r for r in held.runs
        if (r.model, r.engine, r.scenario.batch, r.scenario.prompt) == (model, "hf-graph", batch, prompt)
    )  # fmt: skip
    return [stats.median(each) * 1e-9 for each in zip(*found.step_ns)]


def test_the_clock_recovers_as_the_steps_of_a_run_say() -> None:
    """The time in which what the first steps take longer falls to 1/e: by the areas of two halves."""
    steps = steps_s("llama-3.1-8b", 8, 2048)
    more = [s - steps[-1] for s in steps]
    half = len(more) // 2
    fallen = sum(more[half:]) / sum(more[:half])
    assert pytest.approx(-sum(steps[:half]) / log(fallen), rel=0.3) == RECOVERY_S


@pytest.mark.parametrize(("model", "batch", "prompt"), [("llama-3.1-8b", 32, 256), ("llama-3.1-8b", 8, 512)])
def test_decode_steps_after_a_prompt_are_predicted_longer(model: str, batch: int, prompt: int) -> None:
    """As much as the steps of the same file were, though these two told nothing."""
    steps = steps_s(model, batch, prompt)
    p = chip.predict(model, gpu="h200", engine="hf-graph", batch=batch, prompt=prompt, output=len(steps) + 1)
    (line,) = [n for n in p.lines["tpot"] if n.role == "clock_recovery"]
    measured = sum(steps) / len(steps) / steps[-1] - 1
    assert line.seconds / (p.tpot_s - line.seconds) == pytest.approx(measured, abs=0.02)
    assert line.seconds > 0.01 * p.tpot_s


def test_recovery_fades_and_is_none_after_nothing() -> None:
    assert CLOCK.recovery(0.0, 0.1) == 0.0
    assert CLOCK.recovery(10.0, 0.0) == pytest.approx(1 / (1 - 0.17) - 1)  # of a GPU that has settled, at first
    fading = [CLOCK.recovery(0.1, s) for s in (0.001, 0.01, 0.1, 1.0, 10.0)]
    assert fading == sorted(fading, reverse=True)
    added_s = [CLOCK.recovery(0.1, s) * s for s in (0.001, 0.01, 0.1, 1.0, 10.0)]
    assert added_s == sorted(added_s)  # a longer output never takes less
    assert [CLOCK.recovery(s, 0.1) for s in (0.01, 0.1, 1.0)] == sorted(
        CLOCK.recovery(s, 0.1) for s in (0.01, 0.1, 1.0)
    )
