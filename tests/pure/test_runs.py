"""The file of runs: whole, resumable, strict."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from chip import runs
from chip.types import ChipError, Scenario

RUN = runs.Run(
    "tiny", "hf-eager", "", Scenario(2, 8, 3), "ok",
    ttft_ns=(9_000_000, 11_000_000), step_ns=((2_000_000, 4_000_000), (3_000_000, 5_000_000)),
    e2e_ns=(15_000_000, 19_000_000), energy=runs.Energy(1.0, 2.0, 70.0, "made up"),
)  # fmt: skip
ENVIRONMENT = {"torch": "2.13.0", "device": "cpu"}


def test_what_a_run_says_of_itself() -> None:
    assert RUN.ttft_s == pytest.approx(0.010)
    assert RUN.tpot_s == pytest.approx(0.0035)
    assert RUN.tokens_per_s == pytest.approx(2 * 3 / 0.017)
    assert RUN.joules_per_token == pytest.approx(0.5)
    unknown = replace(RUN, energy=runs.Energy(None, 2.0, 70.0, "made up"))
    assert unknown.joules_per_token is None
    assert unknown.joules_per_token_with_idle is None


def test_a_file_comes_back_as_it_was_written_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "llm.json"
    assert runs.resume(path, ENVIRONMENT) == runs.Runs(())
    held = runs.added(runs.Runs(()), RUN, {"model_type": "llama"})
    runs.write(path, held, ENVIRONMENT)
    assert runs.resume(path, ENVIRONMENT) == held
    again = replace(RUN, flags=("again",))
    assert runs.added(held, again).runs == (again,)
    other = replace(RUN, variant="sdpa=flash")
    assert runs.added(held, other).runs == (RUN, other)


def test_another_machine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "llm.json"
    runs.write(path, runs.Runs((RUN,)), ENVIRONMENT)
    with pytest.raises(ChipError, match=r"measured with torch 2\.13\.0, this is 2\.11\.0; choose another file"):
        runs.resume(path, {**ENVIRONMENT, "torch": "2.11.0"})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"status": "fine"}, "runs\\[0\\]: status 'fine' is not known"),
        ({"status": "failed"}, "ok means samples"),
        ({"e2e_ns": [1]}, "one entry for each repeat"),
        ({"step_ns": [[1], [1]]}, "output - 1 steps"),
        ({"ttft_ns": [0, 1]}, "must be positive"),
        ({"modle": "x"}, "unknown field 'modle'; did you mean 'model'"),
    ],
)
def test_an_edited_file_is_refused_with_its_place(tmp_path: Path, change: dict, says: str) -> None:
    path = tmp_path / "llm.json"
    runs.write(path, runs.Runs((RUN,)), ENVIRONMENT)
    raw = json.loads(path.read_text())
    raw["data"]["runs"][0].update(change)
    path.write_text(json.dumps(raw))
    with pytest.raises(ChipError, match=says):
        runs.read(path)
