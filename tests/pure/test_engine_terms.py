"""An engine's terms in a prediction: the reference host's are named where they matter, one's own take their place."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from chip.engines import profile as engine_profile
from chip.files import artifact, codec
from chip.show import cli
from chip.show.cli.calibrate_engine import render
from chip.types import Ceiling

PAGE = Path(__file__).parents[2] / "results" / "h200" / "findings.md"
MEANINGS = Path(__file__).parents[2] / "docs" / "engines.md"
TABLES = re.compile(r"(?<=^```text\n)([a-z-]+)(?= \().*?(?=^```$)", re.MULTILINE | re.DOTALL)
H200 = engine_profile.read(engine_profile.ENGINES / "h200.vllm.json")
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
    assert f"reference host ({H200.cpu}, which launches a kernel in {H200.launch_ns / 1e3:.3g} us)" in note
    assert "`chip calibrate --host` measures yours" in note
    assert "`chip calibrate --engine vllm` more closely" in note
    assert cli.main(["predict", "llama-3.1-8b", "--batch", "4", "--prompt", "4096", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []  # here the device sets it


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
        ({"engine": "hf-eager"}, (), "holds terms of hf-eager on NVIDIA H200, not of vllm on NVIDIA H200"),
        ({"device": "NVIDIA L4"}, (), "holds terms of vllm on NVIDIA L4, not of vllm on NVIDIA H200"),
        ({}, ("--trace", "--sdpa", "flash"), "--trace takes its operators from HF; --sdpa does not change them"),
        ({"terms": {"nosuch_s": Ceiling(1, 1, 1, "s", "")}}, (), "unknown term 'nosuch_s'"),
        ({"terms": {"step_s": Ceiling(1, 2, 3, "s", "")}}, (), "term 'step_s' must have 0 <= low <= value <= high"),
    ],
)
def test_terms_of_something_else_are_refused(changes, words, says, capsys, tmp_path):
    err = predict(capsys, "--engine-profile", write(tmp_path / "other.json", **changes), *words)
    assert says in err
    assert err.count("\n") == 1


def test_terms_of_a_host_go_with_a_gpu_that_nobody_measured(capsys, tmp_path):
    own = write(tmp_path / "own.json", terms={"host_step_s": Ceiling(0.5, 0.4, 0.6, "s", "made up for tests")})
    assert predict(capsys, "--gpu", "a100", "--engine-profile", own)["tpot_ms"] == pytest.approx(500)


def test_a_launch_latency_that_cannot_be_used_is_told(capsys, tmp_path):
    """Terms that do not tell at which they hold."""
    words = ("predict", "qwen3-0.6b", "--engine", "hf-eager", "--launch-ns", "8000")
    for more in ((), ("--gpu", "a100")):
        assert cli.main([*words, *more]) == 0
        out, err = capsys.readouterr()
        assert "--launch-ns is not used" not in out + err
    older = write(tmp_path / "older.json", engine="hf-eager", launch_ns=0.0)
    assert cli.main([*words, "--engine-profile", older]) == 0
    out, err = capsys.readouterr()
    assert "--launch-ns is not used: no terms of hf-eager tell" in out + err


def test_a_slower_host_is_predicted_slower(capsys):
    words = ("--engine", "hf-eager", "--batch", "1")
    fast, slow = (predict(capsys, *words, "--launch-ns", ns) for ns in ("6000", "12000"))
    assert 1.7 < slow["tpot_ms"] / fast["tpot_ms"] <= 2.05
    wide, narrow = (predict(capsys, *words, *more)["interval"]["tpot_ms"] for more in ((), ("--launch-ns", "8000")))
    assert wide[1] / wide[0] > narrow[1] / narrow[0], "a host that is known is predicted more closely"


# -- the page ---------------------------------------------------------------------------------------------------------
def bundled(engine):
    return render(engine_profile.read(engine_profile.ENGINES / f"h200.{engine}.json")) + "\n"


def test_the_page_has_the_bundled_terms():
    found = {m[1]: m[0] for m in TABLES.finditer(PAGE.read_text(encoding="utf-8"))}
    names = {p.name.split(".")[1] for p in engine_profile.ENGINES.glob("h200.*.json")}
    assert found == {name: bundled(name) for name in names}, "run `python tests/pure/test_engine_terms.py`"


def test_every_term_is_on_the_page():
    text = MEANINGS.read_text(encoding="utf-8")
    assert [name for name in engine_profile.MEANING if f"`{name}`" not in text] == []


if __name__ == "__main__":  # after new terms: write them into the page
    PAGE.write_text(TABLES.sub(lambda m: bundled(m[1]), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
