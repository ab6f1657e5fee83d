"""`chip lab` for real on this CPU with a tiny model: every step whose command is there, and the report of it all."""

import json
from contextlib import redirect_stdout
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from tiny_budget import tiny

from chip.lab import chain
from chip.show import cli

TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
    "max_position_embeddings": 512, "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "hidden_act": "silu",
}  # fmt: skip
LESS = {
    "calibrate": "--only memory --only compute",
    "profile": "--runs 3 --warm-up 0 --context cold",
    "bench": "--repeats 2 --max-seconds 2 --energy-seconds 0",
    "replay": "--runs 3 --warmup 1",
}


@pytest.fixture
def measured_here(monkeypatch):
    """The steps that measure run in this process, where torch is imported already; the others in their own."""
    apart = chain.run_child
    processes = []

    def run(words, stdout, environment):
        _, _, _, name, *_ = words
        if name in LESS:
            with redirect_stdout(stdout):
                return cli.main(list(words[3:]))
        processes.append(name)
        return apart(words, stdout, environment)

    monkeypatch.setattr(chain, "run_child", run)
    monkeypatch.setattr("chip.lab.measure.budget.budget_for", lambda device, mode: replace(tiny(), mode=mode))
    return processes


def test_the_whole_chain(measured_here, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "config.json").write_text(json.dumps(TINY))
    words = ["lab", "tiny", "--device", "cpu", "-o", "out", "--json"]
    words += [w for name, options in LESS.items() for w in ("--with", f"{name}={options}")]
    code = cli.main(words)
    out, err = capsys.readouterr()
    found = json.loads(out)
    results = {s["step"]: s["result"] for s in found["steps"]}
    assert code == 0, err
    for name in chain.NAMES:
        there = name in cli.commands() and name != "kernels"
        assert results[name] == ("done" if there else "left out"), (name, err)
    assert measured_here == ["validate", "report"]
    summary = json.loads((tmp_path / "out" / "site" / "summary.json").read_text())
    rows = {name: len(table["rows"]) for name, table in summary["tables"].items()}
    assert rows["ceilings"] > 5
    assert rows["operators"] > 5
    if "bench" in cli.commands():
        assert rows["runs"] == 1
    if "validate" in cli.commands():
        assert rows["predictions"] > 0
    if "replay" in cli.commands():
        assert rows["replays"] == 1

    assert cli.main(words) == 0
    again = json.loads(capsys.readouterr().out)
    assert {s["result"] for s in again["steps"]} == {"done before", "left out", "done"}
    assert [s["step"] for s in again["steps"] if s["result"] == "done"] == ["report"]
