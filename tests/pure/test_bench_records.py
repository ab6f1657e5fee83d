"""Predicted memory against the recorded runs: torch's allocated peak under HF, the KV cache's tokens under vLLM.

The allocated peak is what weights, cache, activations and workspaces take; the pool's reserved peak also has what its
blocks round up, and the device's peak also the driver.
"""

import json
from collections import defaultdict
from pathlib import Path

import pytest

from chip import cli, hardware, runs
from chip.dtypes import precision
from chip.engines import vllm
from chip.models import library
from chip.predict.memory import needs

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "results" / "h200"
FILES = (
    *("runs/hf-1.json", "runs/tinyllama-fp16.json", "runs/vllm-1.json", "runs/vllm-2.json"),
    *("engines/hf.json", "engines/vllm-1.json", "engines/vllm-2.json"),
)
CAPACITY = hardware.find("h200").memory_bytes
TARGET = 0.05
# Missed, with the worst point. These were recorded while `chip bench` still kept from point to point the workspaces of
# the streams it had captured on, and the sliding caches of the points before (phi-3), and gave models with tied
# embeddings a head of their own (qwen2.5-0.5b: 272 MB). Runs recorded since have none of this: drop their lines.
MISSED = {
    ("qwen2.5-0.5b", "hf-graph"): -0.263,
    ("qwen2.5-0.5b", "hf-eager"): -0.209,
    ("phi-3-mini", "hf-graph"): -0.321,
    ("tinyllama-2-layers", "hf-graph"): -0.121,
    ("tinyllama-6-layers", "hf-graph"): -0.175,
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """(run, what is predicted for it), of every finished run."""
    found = []
    for name in FILES:
        held = runs.read(RECORDS / name)[1]
        for run in (r for r in held.runs if r.status == "ok"):
            config = tmp_path_factory.mktemp("model") / "config.json"
            config.write_text(json.dumps(held.configs[run.model]))
            point = run.scenario
            model = library.find(str(config))
            found.append((run, needs(model, point, run.engine, precision(point.dtype), CAPACITY)))
    return found


def test_memory_under_hf(recorded):
    errors = defaultdict(list)
    for run, room in recorded:
        if run.engine != "vllm":
            predicted = room["total_bytes"] - room["context_bytes"]  # torch does not count the context
            errors[run.model, run.engine].append(predicted / run.memory["allocated_peak_bytes"] - 1)
    assert len(errors) >= 9
    worst = {who: max(each, key=abs) for who, each in errors.items()}
    missed = {who: error for who, error in worst.items() if abs(error) > TARGET}
    assert missed == {who: pytest.approx(error, abs=0.002) for who, error in MISSED.items()}


def test_what_lies_beside_the_pool(recorded):
    beside = [
        (run.memory["device_peak_bytes"] - run.memory["reserved_peak_bytes"], room["context_bytes"])
        for run, room in recorded
        if run.engine != "vllm"
    ]
    assert all(held == pytest.approx(said, abs=0.1e9) for held, said in beside)


def test_kv_cache_under_vllm(recorded):
    seen = {}
    for run, room in recorded:
        if run.engine == "vllm":
            seen[run.model, run.scenario] = room["kv_capacity_tokens"] / run.memory["kv_cache_tokens"] - 1
    assert len({model for model, _ in seen}) >= 6
    assert max(map(abs, seen.values())) <= TARGET, seen


def test_defaults_of_vllm_are_those_it_ran_with(recorded):
    for run, _ in recorded:
        if run.engine != "vllm":
            continue
        config = run.settings["config"]
        assert config["cache_config"]["gpu_memory_utilization"] == vllm.MEMORY_SHARE
        assert config["scheduler_config"]["max_num_batched_tokens"] == vllm.step_tokens(CAPACITY)
        assert config["scheduler_config"]["max_num_seqs"] == vllm.max_seqs(CAPACITY)
        assert tuple(config["compilation_config"]["cudagraph_capture_sizes"]) == vllm.GRAPH_TOKENS


def test_a_file_of_runs_can_be_shown_again(capsys):
    file = str(RECORDS / "runs" / "tinyllama-fp16.json")
    assert cli.main(["show", file]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("NVIDIA H200, transformers 5.17.0\n")
    assert "GPU idle 81.0 % of prefill, 84.1 % of decode" in shown
    assert cli.main(["show", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [r["engine"] for r in found["runs"]] == ["hf-graph", "hf-eager", "hf-eager"]
    for r in found["runs"]:
        assert r["joules_per_token_with_idle"] > 2 * r["joules_per_token"]
    assert cli.main(["show", file, "--markdown"]) == 0
    table = capsys.readouterr().out
    assert table in (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    head, rule, *rows = table.splitlines()
    assert head.startswith("| engine | tokens/s | latency P50 | P95 | peak VRAM | J/token | with idle |")
    assert rule.count("---:") == head.count("|") - 2
    assert [row.split(" | ")[0] for row in rows] == ["| `hf-graph`", "| `hf-eager`", "| `hf-eager` `sdpa=flash`"]


def test_markdown_is_for_runs(capsys):
    assert cli.main(["show", "h200", "--markdown"]) == 2
    assert "--markdown is for a file of runs, and 'h200' is none" in capsys.readouterr().err


def test_no_record_names_a_home():
    for path in sorted(RECORDS.rglob("*.json")):
        text = path.read_text(encoding="utf-8")
        assert "/home/" not in text, path
        assert "/root" not in text, path
