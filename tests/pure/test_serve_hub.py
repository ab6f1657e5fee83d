"""Hub ids through the API: the config that the command line has, and no other file; not for everyone."""

import http.client
import json
import threading
from contextlib import closing

import pytest

from chip.decoders import hub, library
from chip.show.serve import server
from chip.show.serve.guard import Guard

REPO = "someone/their-model"


def asked(model, guard=None):
    with server.Server(("127.0.0.1", 0), 5.0, guard=guard) as made:
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        with closing(http.client.HTTPConnection(*made.server_address[:2], timeout=30)) as connection:
            head = {"Content-Type": "application/json", "Authorization": "Bearer long-enough"}
            connection.request("POST", "/api/hub", json.dumps({"model": model}), head)
            response = connection.getresponse()
            found = response.status, json.loads(response.read())
        made.shutdown()
    return found


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """What the hub has under any name: a config.json, and beside it what ModelOpt writes."""
    pytest.importorskip("huggingface_hub")
    config = json.loads((library.CONFIGS / "llama-3.1-8b.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    quantized = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(quantized))
    monkeypatch.setattr(hub, "_download", lambda repo, online: tmp_path / "config.json")
    monkeypatch.setattr(hub, "answers", lambda endpoint: False)
    return config


def test_the_config_is_the_one_of_the_command_line(cached):
    status, found = asked(REPO)
    assert (status, found["model"]) == (200, REPO)
    method = found["config"].pop("quantization_config")
    assert method["quantization"]["quant_algo"] == "FP8", "with what lies beside it"
    assert found["config"] == cached


@pytest.mark.parametrize(
    "model", ["../secret", "a/../b", "/etc/passwd", ".hidden/x", "a/.b", "a/b/c", "gpt2", "", "a/" + "b" * 90, 7]
)
def test_nothing_else_is_looked_up(model, monkeypatch):
    monkeypatch.setattr(library, "from_hub", lambda repo: pytest.fail(f"{repo} was looked up"))
    status, found = asked(model)
    assert status == 422
    assert found["error"].startswith("a hub id is org/name")


def test_a_folder_of_that_name_is_not_read(tmp_path, monkeypatch):
    (tmp_path / "someone" / "their-model").mkdir(parents=True)
    (tmp_path / "someone" / "their-model" / "config.json").write_text('{"secret": 1}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "config_of", lambda repo, hint: library.CONFIGS / "gpt2.json")
    status, found = asked(REPO)
    assert status == 200
    assert "secret" not in found["config"]


def test_not_for_everyone(monkeypatch):
    monkeypatch.setattr(hub, "config_of", lambda repo, hint: library.CONFIGS / "gpt2.json")
    status, found = asked(REPO, Guard("0.0.0.0"))
    assert status == 403
    assert "--token" in found["error"]
    assert asked(REPO, Guard("0.0.0.0", token="long-enough"))[0] == 200
