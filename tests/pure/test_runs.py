"""The file of runs: whole, resumable, strict."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from chip.files import identity, runs
from chip.types import ChipError, Scenario

RUN = runs.Run(
    "tiny", "hf-eager", "", Scenario(2, 8, 3), "ok",
    ttft_ns=(9_000_000, 11_000_000), step_ns=((2_000_000, 4_000_000), (3_000_000, 5_000_000)),
    e2e_ns=(15_000_000, 19_000_000), energy=runs.Energy(1.0, 2.0, 70.0, "made up"),
)  # fmt: skip
BEFORE = "14609b583b25064a"
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


A, B = ({"model_type": "llama", "hidden_size": n} for n in (8, 16))


def test_a_model_is_known_by_its_config_and_its_name_is_a_label(tmp_path: Path) -> None:
    first, second = (replace(RUN, identity=identity.of_model(c)) for c in (A, B))
    held = runs.added(runs.added(runs.Runs(()), first, A), second, B)
    assert [r.model for r in held.runs] == ["tiny", f"tiny@{second.identity[:8]}"]
    assert held.configs == {"tiny": A, held.runs[1].model: B}
    again = runs.added(held, replace(second, flags=("again",)), B)
    assert [r.flags for r in again.runs] == [(), ("again",)], "the same one again takes the place of the old"
    path = tmp_path / "llm.json"
    runs.write(path, again, ENVIRONMENT)
    assert runs.read(path)[1] == again


def test_who_saved_a_config_and_the_order_of_its_fields_do_not_matter() -> None:
    saved = {"hidden_size": 8, "_name_or_path": "x", "transformers_version": "5.0", "torch_dtype": "float16"}
    assert identity.of_config({**saved, "model_type": "llama"}) == identity.of_config(A)
    assert identity.of_config(A) != identity.of_config(B)


def test_other_weights_are_another_model(tmp_path: Path) -> None:
    for name, content in (("a", b"x" * 100), ("b", b"y" * 100)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(content)
    found = {identity.of_model(A), *(identity.of_model(A, tmp_path / name) for name in "ab")}
    assert len(found) == 3


def test_an_older_record_has_the_identity_of_the_config_beside_it_and_keeps_its_id() -> None:
    held = runs.added(runs.Runs(()), RUN, A)
    assert held.runs[0] == RUN
    assert runs.key_of(RUN, held.configs)[0] == identity.of_model(A)
    assert runs.key_of(RUN, {})[0] == "tiny"
    named = replace(RUN, identity=identity.of_model(A))
    assert runs.added(held, named, A).runs == (named,)
    assert runs.added(held, replace(RUN, identity=identity.of_model(B)), B).runs[0] == RUN
    # content id of this very record as it was before runs had an identity: engine profiles name such ids
    assert runs.id_of(RUN) == BEFORE
    assert runs.id_of(named) != BEFORE


@pytest.mark.parametrize("scenario", [{"batch": 0}, {"batch": -3}, {"prompt": 0}, {"tp": 0}, {"prompt": 10**12}])
def test_a_scenario_that_cannot_be_is_refused(tmp_path: Path, scenario: dict) -> None:
    path = tmp_path / "llm.json"
    runs.write(path, runs.Runs((RUN,)), ENVIRONMENT)
    raw = json.loads(path.read_text())
    raw["data"]["runs"][0]["scenario"].update(scenario)
    path.write_text(json.dumps(raw))
    with pytest.raises(ChipError, match=r"runs\[0\]: batch, prompt, output and tp of a scenario must be between 1 and"):
        runs.read(path)
