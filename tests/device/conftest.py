"""What the tests that need torch share."""

import json
from pathlib import Path

import pytest

MIB = 2**20
STAND_IN = Path(__file__).parent / "stand_in"


@pytest.fixture(scope="session", autouse=True)
def small_cache():
    """The CPU that is measured has a small cache: buffers that lie outside of it are filled in a moment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("chip.lab.measure.device._last_level_cache_bytes", lambda: MIB)
        yield


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """A stand-in for vLLM that the worker of another process imports; its logs and caches lie in `tmp_path`."""
    monkeypatch.setenv("CHIP_ENGINE_PYTHONPATH", str(STAND_IN))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("tempfile.tempdir", None)


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that torch.compile makes, run as they stand: inductor on a CPU takes a C++ compiler and half a minute,
    and makes other kernels than on a GPU."""
    import torch

    from chip.lab.measure import build

    made = []

    def backend(graph, _):
        made.append(graph)
        return graph.forward

    compile_now = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compile_now(function, backend=backend))
    monkeypatch.setattr(build, "_laid_out", set())
    torch.compiler.reset()
    build._compile.cache_clear()
    yield made
    build._compile.cache_clear()


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Family -> (tiny HF model, folder with its shards, config as transformers writes it)."""
    from tiny_native import hf_model, tiny

    made = {}

    def of(name):
        if name not in made:
            folder, model = tmp_path_factory.mktemp(name), hf_model(tiny(name))
            model.save_pretrained(folder, max_shard_size="60KB")
            made[name] = model, folder, json.loads((folder / "config.json").read_text())
        return made[name]

    return of
