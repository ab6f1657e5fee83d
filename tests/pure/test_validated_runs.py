"""The nearest validated run of an answer: from the records, quick, and where a reader finds it."""

import importlib.util
import json
from pathlib import Path

import pytest

import chip
from chip.predictor import validated_runs
from chip.show import cli

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
    assert amd["gpu"] == "mi300x", "of the same architecture, and both are known by their datasheets"


@pytest.mark.parametrize(
    ("model", "gpu", "other"),
    [
        ("llama-3.1-8b", "rtx-4090", {}),  # nobody's run of such a GPU is in the index
        ("llama-3.1-8b", "h200", {"dtype": "fp8"}),
        ("llama-3.1-8b", "h200", {"kv_dtype": "fp8"}),
        ("llama-3.1-8b", "h200", {"tp": 2}),
        ("llama-3.1-8b", "h200", {"pp": 2}),
        ("mixtral-8x7b", "h200", {"ep": 4}),
        ("llama-3.1-8b", "h200", {"engine": "native"}),
        ("deepseek-v3", "h200", {"tp": 8}),
    ],
)
def test_where_nothing_comparable_was_validated_there_is_no_nearest_run(model, gpu, other):
    assert chip.predict(model, gpu=gpu, batch=8, **other).nearest_validated == []


def test_what_is_named_ran_on_the_same_kind_of_gpu_format_split_and_engine():
    asked = [("h200", {}), ("h200", {"engine": "hf-eager"}), ("h100", {"tp": 4}), ("gh200-144gb", {}), ("mi325x", {})]
    for gpu, other in asked:
        for run in chip.predict("qwen2.5-7b", gpu=gpu, batch=2, **other).nearest_validated:
            assert run["engine"] == other.get("engine", "vllm")
            assert run["tp"] == other.get("tp", 1)
            assert run["gpu"] == {"gh200-144gb": "gh200", "mi325x": "mi300x"}.get(gpu, gpu)


def test_where_there_is_none_the_text_says_so(capsys):
    assert cli.main(["predict", "deepseek-v3", "--tp", "8"]) == 0
    assert "nearest validated run: none of vllm in fp8 on 8 GPUs of this kind\n" in capsys.readouterr().out


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
    held = validated_runs.INDEX.read_text().splitlines()
    assert [row for row in held if row.endswith(",our runs")] == ours[3:], "run `python benchmarks/validated_index.py`"
    assert held[1:3] == ours[1:3]
    assert validated_runs.INDEX.stat().st_size < 200_000


def test_only_our_own_runs_carry_what_was_measured():
    runs = list(validated_runs.measured("llama-3.1-8b", "h200", "vllm", "bf16", 1, {512, 1024}))
    assert {run["prompt"] for run in runs} == {512, 1024}
    for run in runs:
        assert run["source"] == validated_runs.OURS
        assert 0 < run["tpot_ms"] < run["ttft_ms"]
    assert not list(validated_runs.measured("llama-3.1-8b", "h200", "vllm", "fp8", 1, {512}))
    assert not list(validated_runs.measured("llama-3.1-8b", "h200", "vllm", "bf16", 2, {512}))
    published = [
        line for held in validated_runs.settings() for line in held.lines if not line.endswith(validated_runs.OURS)
    ]
    assert len(published) > 1000
    assert all(line.split(",")[8:-1] == ["", ""] for line in published)
