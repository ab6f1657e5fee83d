"""The nearest validated run of an answer: from the records, quick, and where a reader finds it."""

import importlib.util
import json
from pathlib import Path

import chip
from chip import cli
from chip.predict import nearest

ROOT = Path(__file__).parents[2]


def test_a_run_that_was_validated_is_its_own_nearest():
    first = chip.predict("llama-3.1-8b", gpu="h200", batch=8, prompt=512, output=33).nearest_validated[0]
    assert (first["model"], first["gpu"], first["engine"]) == ("llama-3.1-8b", "h200", "vllm")
    assert first["batch"] == 8
    assert abs(first["tpot_error"]) < 0.1
    other = chip.predict("llama-3.1-8b", gpu="h100", batch=16, prompt=512, output=512).nearest_validated
    assert len(other) == 3
    assert all(run["gpu"] == "h100" for run in other), "published runs of the same GPU come before ours of another"
    assert other[0]["source"] == "argonne"
    assert (other[0]["version"], other[0]["batch"], other[0]["prompt"]) == ("0.6", 16, 512)
    amd = chip.predict("llama-3.1-8b", gpu="mi325x").nearest_validated[0]
    assert amd["gpu"] == "mi300x", "of the same vendor, if any"


def test_it_is_in_the_text_and_in_the_json(capsys):
    assert cli.main(["predict", "qwen3-8b", "--gpu", "h200"]) == 0
    told = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("nearest validated run: "))
    assert " on h200, vllm" in told
    assert "TPOT " in told
    assert cli.main(["predict", "qwen3-8b", "--gpu", "h200", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["nearest_validated"]
    assert {"model", "gpu", "engine", "batch", "prompt", "output", "tpot_error"} <= set(found[0])
    assert f"{100 * found[0]['tpot_error']:+.1f} %" in told


def test_the_index_is_what_its_command_makes_of_the_records():
    path = ROOT / "benchmarks" / "validated_index.py"
    spec = importlib.util.spec_from_file_location("validated_index", path)
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    ours = made.index([ROOT / "results" / "h200" / "validation.json"]).splitlines()
    held = nearest.INDEX.read_text().splitlines()
    assert [row for row in held if row.endswith(",our runs")] == ours[3:], "run `python benchmarks/validated_index.py`"
    assert held[1:3] == ours[1:3]
    assert nearest.INDEX.stat().st_size < 200_000


def test_only_our_own_runs_carry_what_was_measured():
    runs = list(nearest.measured("llama-3.1-8b", "h200", "vllm", "bf16", 1, {512, 1024}))
    assert {run["prompt"] for run in runs} == {512, 1024}
    for run in runs:
        assert run["source"] == nearest.OURS
        assert 0 < run["tpot_ms"] < run["ttft_ms"]
    assert not list(nearest.measured("llama-3.1-8b", "h200", "vllm", "fp8", 1, {512}))
    assert not list(nearest.measured("llama-3.1-8b", "h200", "vllm", "bf16", 2, {512}))
    published = [line for held in nearest.settings() for line in held.lines if not line.endswith(nearest.OURS)]
    assert len(published) > 1000
    assert all(line.split(",")[7:-1] == ["", "", ""] for line in published)
