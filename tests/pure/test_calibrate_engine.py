"""An engine's terms in a prediction: the reference host's are named where they matter, one's own take their place."""

import json
from dataclasses import replace

import pytest

from chip import artifact, cli, codec, engine_profile, hardware
from chip.types import Ceiling

H200 = engine_profile.find(hardware.find("h200"), "vllm")
HOST_BOUND = ("predict", "tinyllama-1.1b", "--prompt", "16", "--json")


def write(path, **changes):
    made = replace(H200, **changes)
    artifact.write(path, artifact.new(made.SCHEMA, codec.to_json(made), {}))
    return str(path)


def predict(capsys, *words):
    code = cli.main([*HOST_BOUND, *words])
    out, err = capsys.readouterr()
    return json.loads(out) if code == 0 else err


def test_the_reference_host_is_named_where_it_sets_the_pace(capsys):
    (note,) = predict(capsys)["notes"]
    assert f"reference host ({H200.cpu})" in note
    assert "`chip calibrate --engine vllm` measures yours" in note
    assert predict(capsys, "--batch", "512", "--prompt", "2000", "--output", "2")["notes"] == []  # it waits, but little


def test_ones_own_terms_take_the_place_of_the_bundled(capsys, tmp_path):
    slow = Ceiling(0.5, 0.4, 0.6, "s", "made up for tests")
    own = write(tmp_path / "own.json", terms={"host_step_s": slow})
    found = predict(capsys, "--engine-profile", own)
    assert found["tpot_ms"] == pytest.approx(500)
    assert found["notes"] == []
    assert predict(capsys)["tpot_ms"] < 10


def test_they_hold_for_every_line_of_a_sweep(capsys, tmp_path, monkeypatch):
    own = write(tmp_path / "own.json", terms={"host_step_s": Ceiling(0.25, 0.25, 0.25, "s", "made up for tests")})
    monkeypatch.setattr("sys.stdin", open_lines(tmp_path, '{"model": "gpt2"}\n{"model": "tinyllama-1.1b"}\n'))
    assert cli.main(["predict", "-", "--engine-profile", own]) == 0
    assert [json.loads(line)["tpot_ms"] for line in capsys.readouterr().out.splitlines()] == pytest.approx([250, 250])


def open_lines(folder, text):
    (folder / "lines.jsonl").write_text(text)
    return open(folder / "lines.jsonl")


@pytest.mark.parametrize(
    ("changes", "words", "says"),
    [
        ({"engine": "hf-eager"}, (), "holds terms of hf-eager, asked for is vllm"),
        ({"device": "NVIDIA L4"}, (), "was measured on NVIDIA L4, h200 is NVIDIA H200"),
        ({}, ("--gpu", "a100"), "was measured on NVIDIA H200, a100 is NVIDIA A100"),
        ({}, ("--trace",), "--engine-profile does not go with it"),
        ({"terms": {"nosuch_s": Ceiling(1, 1, 1, "s", "")}}, (), "unknown term 'nosuch_s'"),
        ({"terms": {"step_s": Ceiling(1, 2, 3, "s", "")}}, (), "term 'step_s' must have 0 <= low <= value <= high"),
    ],
)
def test_terms_of_something_else_are_refused(changes, words, says, capsys, tmp_path):
    err = predict(capsys, "--engine-profile", write(tmp_path / "other.json", **changes), *words)
    assert says in err
    assert err.count("\n") == 1
