"""An engine is a folder: one put beside the others is listed, predicts and can be asked for by name, with nothing else
touched."""

import ast
import json
import sys

import pytest
from asking import predict
from source_trees import FILES, SRC, nodes

from chip import engines
from chip.decoders import library
from chip.engines import profile
from chip.hardware import gpus
from chip.predictor import request
from chip.predictor.clock import Settling
from chip.show import cli
from chip.simulator.plan import plan
from chip.simulator.simulation import simulate
from chip.types import ChipError, Scenario

ENGINE = '''
"""Everything in one graph, launched by a host that takes a millisecond; half of the free memory is for keys."""

from dataclasses import dataclass

from chip.engines import Engine, Serves, chunked
from chip.engines.memory import Memory, Room
from chip.engines.timeline import LiveScheduler

STEP_TOKENS = 8192


@dataclass(frozen=True)
class Options:
    requests: int = 32
    pool_share: float = 0.5
    policy: str = "fair"
    mixes: bool = True


class MadeUp(Engine):
    NAME = "made-up"
    TITLE = "an engine of a test"
    CAVEAT = "made up"
    TERMS = ("host_step_s",)
    LIMITS = {"requests": (1, 64), "pool_share": (0.1, 1.0), "policy": ("fair", "unfair")}
    SERVES = Serves(exchange="carrier pigeons")
    CIRCULATES = True

    def defaults(self, memory_bytes):
        return Options()

    def runs_as(self, capability, d=None, options=None, version=""):
        return {"linear": "torch", "attention": "flash"}

    def rewrite(self, program, decode, architecture=""):
        return program

    def play(self, t, step, terms):
        t.graph("step", terms.host_step_s, step.device_s(t))

    def prefill(self, scenario, options):
        return chunked.prefill_steps(scenario, STEP_TOKENS, options.requests, self.step)

    def decode(self, scenario, options):
        return chunked.decode_step(scenario, options.requests, self.step)

    def memory(self, load, options):
        free = load.capacity_bytes - load.weight_bytes
        tokens = int(free * options.pool_share // load.token_bytes)
        s = load.scenario
        return Memory(
            load.capacity_bytes, load.token_bytes, s.batch * (s.prompt + s.output) * load.token_bytes, 0.0, 0.0,
            tokens // (s.prompt + s.output), load.decoder.max_context, tokens,
        )

    def over_capacity(self, context, capacity):
        return f"{context} tokens are too many for {capacity}"

    def scheduler(self, options):
        return LiveScheduler(
            options.requests, STEP_TOKENS, block_size=32, enable_prefix_caching=False, async_scheduling=False,
            mixes_prompts=options.mixes,
        )


ENGINE = MadeUp()
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
    assert engines.names() == ("hf-eager", "hf-graph", "made-up", "native", "sglang", "trtllm", "vllm")
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
    assert profile.find(gpus.find("h200"), "made-up") is None
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
def test_its_memory_and_settings_are_its_own():
    asked = {"model": "qwen3-0.6b", "engine": "made-up", "batch": 100, "prompt": 100, "output": 20}
    half, whole = (request.answer({**asked, "engine_settings": {"pool_share": n}})["memory"] for n in (0.5, 1.0))
    free = half["capacity_bytes"] - half["weights_bytes"]
    assert half["kv_capacity_tokens"] == pytest.approx(free / 2 / half["kv_bytes_per_token"], abs=1)
    assert whole["kv_capacity_tokens"] == pytest.approx(2 * half["kv_capacity_tokens"], abs=2)
    assert half["max_batch"] == half["kv_capacity_tokens"] // 120
    waves, at_once = (request.answer({**asked, "engine_settings": {"requests": n}}) for n in (8, 64))
    assert waves["ttft_ms"] > at_once["ttft_ms"]
    for settings, refused in (
        ({"requests": 65}, "requests: must be between 1 and 64, got 65"),
        ({"policy": "odd"}, "policy: must be fair or unfair, got 'odd'"),
        ({"max_num_seqs": 8}, "'max_num_seqs' is not known; known: requests, pool_share, policy, mixes"),
    ):
        with pytest.raises(ChipError, match=f"engine setting {refused}"):
            request.answer({**asked, "engine_settings": settings})
    small = request.answer({**asked, "gpu": "rtx-3090", "model": "llama-3.1-8b"})
    assert "131072 tokens are too many for" in " ".join(small["notes"])


@pytest.mark.usefixtures("folder")
def test_it_is_split_over_gpus_by_its_own_rules():
    asked = {"model": "qwen3-30b-a3b", "engine": "made-up", "batch": 64, "prompt": 512, "output": 8}
    notes = " ".join(request.answer({**asked, "ep": 4})["notes"])
    assert "tokens exchanged by carrier pigeons" in notes
    assert "4 batches in flight" in " ".join(request.answer({**asked, "pp": 4})["notes"])
    assert "1 batch in flight" in " ".join(request.answer({**asked, "engine": "hf-eager", "pp": 4})["notes"])
    with pytest.raises(ChipError, match="hf-eager has no expert parallelism"):
        request.answer({**asked, "engine": "hf-eager", "ep": 4})


@pytest.mark.usefixtures("folder")
def test_it_is_simulated_by_its_own_scheduler():
    asked = {"engine": "made-up", "workload": "poisson:prompt=200,output=40", "requests": 80, "rate": 20, "draws": 0}
    one, many = (simulate("qwen3-0.6b", engine_settings={"requests": n}, **asked) for n in (1, 64))
    assert many.settings == {
        "requests": 64, "pool_share": 0.5, "policy": "fair", "mixes": True, "num_gpu_blocks": many.kv["blocks"],
        "max_model_len": library.find("qwen3-0.6b").max_context,
    }  # fmt: skip
    p = request.answer({"model": "qwen3-0.6b", "engine": "made-up"})
    assert many.kv["blocks"] == p["memory"]["kv_capacity_tokens"] // 32
    assert one.queue_s.p50 > 10 * many.queue_s.p50
    assert one.cache_hit_rate == many.cache_hit_rate == 0
    apart = simulate("qwen3-0.6b", engine_settings={"requests": 64, "mixes": False}, **asked)
    assert apart.completed == many.completed == 80
    assert apart.steps > many.steps, "prompts have steps of their own"
    with pytest.raises(ChipError, match="'hf-eager' cannot be simulated: it has no scheduler of live traffic"):
        simulate("qwen3-0.6b", **{**asked, "engine": "hf-eager"})


@pytest.mark.usefixtures("folder")
def test_a_plan_chooses_with_it():
    found = plan(
        "qwen3-0.6b", workload="poisson:prompt=200,output=40", rate=200.0, goals="ttft_p99=500ms", gpus=("h200", "l4"),
        requests=200, intervals=False, engine="made-up",
    )  # fmt: skip
    assert [c.status for c in found.choices] == ["ok", "ok"]
    assert found.choices[0].max_rate_per_s > found.choices[1].max_rate_per_s > 0


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
def test_every_engine_says_what_it_is(name):
    e = engines.get(name)
    assert name == e.NAME
    assert e.TITLE
    assert set(e.TERMS) <= set(profile.MEANING)
    assert e.VERSIONS


PREDICTING = ("ops", "hardware", "decoders", "question.py", "predictor", "simulator")
TABLES = SRC / "hardware" / "tables"  # words of other people's files


def named(path):
    """Where a file names an engine, or imports from an engine's folder."""
    folders = [f"chip.engines.{name.replace('-', '_')}" for name in engines.names()]
    for node in nodes(path):
        if isinstance(node, ast.Constant) and node.value in engines.names():
            yield node.value
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
            yield from (f for f in folders if any(m == f or m.startswith(f"{f}.") for m in modules))


def test_no_engine_is_named_where_predictions_are_made():
    files = [p for p in FILES if p.relative_to(SRC).parts[0] in PREDICTING and not p.is_relative_to(TABLES)]
    assert len(files) > 80
    found = {str(p.relative_to(SRC)): list(named(p)) for p in files}
    assert {p: names for p, names in found.items() if names} == {"question.py": ["vllm"]}  # the default
    assert list(named(SRC / "engines" / "vllm" / "__init__.py")), "else nothing would be seen"
