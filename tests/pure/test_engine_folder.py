"""An engine is a folder: one put beside the others is listed, predicts and can be asked for by name, with nothing else
touched."""

import json
import sys

import pytest
from asking import predict

from chip import cli, engine_profile, engines, hardware
from chip.models import library
from chip.predict import request
from chip.predict.clock import Settling
from chip.types import ChipError, Scenario

ENGINE = '''
"""Everything in one graph, launched by a host that takes a millisecond."""

from chip.engines.hf_eager import decode, peak_bytes, prefill, room
from chip.engines.playing import Played
from chip.engines.terms import Terms
from chip.timeline import Timeline

NAME = "made-up"
TITLE = "an engine of a test"
CAVEAT = "made up"
TERMS = ("host_step_s",)


def runs_as(capability, options):
    return {"linear": "torch", "attention": "flash"}


def rewrite(program, decode, architecture=""):
    return program


def play(t: Timeline, step: Played, terms: Terms) -> None:
    t.graph("step", terms.host_step_s, step.device_s(t))
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "made_up").mkdir()
    (tmp_path / "made_up" / "__init__.py").write_text(ENGINE)
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(tmp_path)])
    cached = (engines.names, engines.get, request.prepared)
    for each in cached:
        each.cache_clear()
    yield tmp_path
    for each in cached:
        each.cache_clear()
    sys.modules.pop("chip.engines.made_up", None)


@pytest.mark.usefixtures("folder")
def test_it_is_listed_and_predicts():
    assert engines.names() == ("hf-eager", "hf-graph", "made-up", "native", "vllm")
    a = request.answer({"model": "llama-3.1-8b", "engine": "made-up", "batch": 2, "prompt": 100, "output": 3})
    assert a["engine"] == "made-up"
    assert 0 < a["interval"]["tpot_ms"][0] <= a["tpot_ms"] <= a["interval"]["tpot_ms"][1]
    assert a["sources"]["interpolated"] > 0.5
    assert "made up" in a["notes"]
    assert a["memory"]["fits"]


@pytest.mark.usefixtures("folder")
def test_it_is_predicted_with_its_own_terms(tmp_path, monkeypatch):
    """Nobody measured its host: its operators alone, until somebody does."""
    monkeypatch.setattr(Settling, "recovery", lambda *_: 0.0)
    assert engine_profile.find(hardware.find("h200"), "made-up") is None
    d, s = library.find("qwen3-0.6b"), Scenario(1, 16, 4)
    bare = predict(d, "h200", "made-up", s)
    term = {"value": 1e-3, "low": 1e-3, "high": 1e-3, "unit": "s", "method": "made up"}
    data = {"engine": "made-up", "engine_version": "1", "device": "NVIDIA H200", "cpu": "a CPU", "models": [],
            "terms": {"host_step_s": term}}  # fmt: skip
    path = tmp_path / "terms.json"
    path.write_text(json.dumps({"schema": "chip.engine_profile/2", "data": data, "environment": {}, "inputs": []}))
    timed = predict(d, "h200", "made-up", s, engine_profile=str(path))
    assert timed.decode.seconds == pytest.approx(bare.decode.seconds + 1e-3)


@pytest.mark.usefixtures("folder")
def test_the_command_knows_it(capsys):
    assert cli.main(["predict", "gpt2", "--engine", "made-up", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["engine"] == "made-up"
    assert cli.main(["predict", "gpt2", "--engine", "made-ip"]) == 2
    assert "did you mean made-up?" in capsys.readouterr().err


def test_it_is_gone_afterwards():
    assert "made-up" not in engines.names()
    with pytest.raises(ChipError, match="no engine 'made-up'"):
        engines.get("made-up")


@pytest.mark.parametrize("name", engines.names())
def test_every_engine_has_what_the_protocol_says(name):
    e = engines.get(name)
    for what in engines.Engine.__annotations__:
        assert hasattr(e, what), what
    for what in ("runs_as", "prefill", "decode", "rewrite", "play", "room"):
        assert callable(getattr(e, what)), what
    assert set(e.TERMS) <= set(engine_profile.MEANING)
