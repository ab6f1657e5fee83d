"""vLLM's process: the real worker over a stand-in for vLLM, in another interpreter, and all that can go wrong there."""

import importlib.util
import json
import os
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from chip.files import runs
from chip.lab.measure.device import open_device
from chip.lab.measure.energy import EnergyReading, NotAvailable
from chip.lab.run import Job, Lost, get, grid, names, vllm, vllm_worker
from chip.lab.run.vllm_protocol import VllmWorker, ending
from chip.types import ChipError, Scenario

pytestmark = pytest.mark.usefixtures("stand_in")
STAND_IN = Path(__file__).parent / "stand_in"
CONFIG = {"architectures": ["LlamaForCausalLM"], "vocab_size": 512}


def job(**changes):
    return Job(**{"model": "tiny", "config": CONFIG, "max_context": 64, "timeout_s": 60.0, **changes})


def logs(tmp_path):
    return sorted(tmp_path.glob("chip-worker-*.log"))


def test_it_is_found_as_an_engine():
    assert "vllm" in names()
    assert not {"vllm-worker", "vllm-protocol"} & set(names())
    assert get("vllm") is vllm


def test_runs_of_several_points_are_whole_and_add_up(tmp_path):
    with vllm.open(job(settings={"max_model_len": "256", "note": "as it is"})) as session:
        made = [session.measure(Scenario(*point), 3) for point in ((1, 8, 5), (4, 100, 6), (3, 20, 1))]
    for run in made:
        assert run.status == "ok"
        assert len(run.ttft_ns) == 3
        for ttft, steps, e2e in zip(run.ttft_ns, run.step_ns, run.e2e_ns):
            assert len(steps) == run.scenario.output - 1
            assert ttft + sum(steps) == e2e
            assert min(ttft, e2e, *steps) > 0
    first = made[0]
    assert (first.engine, first.engine_version, first.weights) == ("vllm", "vllm 0.26.0+stand.in", "random")
    assert first.variant == "max_model_len=256,note=as it is"
    assert first.memory["kv_cache_tokens"] == 1600
    assert {"import", "load", "compile", "capture", "refill", "warm_up"} - {"load"} <= set(first.setup_s)
    said = first.settings["arguments"]
    assert (said["dtype"], said["load_format"], said["max_model_len"]) == ("bfloat16", "dummy", 256)
    assert said["skip_tokenizer_init"] is True
    assert said["enable_prefix_caching"] is False
    config = first.settings["config"]
    assert config["compilation_config"]["cudagraph_mode"] == "FULL_AND_PIECEWISE"
    assert config["scheduler_config"]["max_num_batched_tokens"] == 64
    assert "hf_config" not in config["model_config"]
    assert "static_forward_context" not in config["compilation_config"]
    assert json.loads(Path(said["model"], "config.json").read_text()) == CONFIG
    assert any(f.startswith("no energy") for f in first.flags)

    runs.write(tmp_path / "r.json", runs.Runs(tuple(made), {"tiny": CONFIG}), {"device": "none"})
    assert runs.read(tmp_path / "r.json")[1].runs == tuple(made)
    assert logs(tmp_path) == []  # a log of a run that went well is not kept


def test_a_refused_point_leaves_the_engine_usable():
    with vllm.open(job()) as session:
        with pytest.raises(ChipError, match=r"^vLLM: prompt \+ output is 205 tokens and this engine takes 128") as e:
            session.measure(Scenario(1, 200, 5), 2)
        assert not isinstance(e.value, Lost)
        assert session.measure(Scenario(1, 20, 5), 2).status == "ok"


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("killed in a step", r"killed by SIGKILL, often the host's memory is full\): ERROR 11-15 the host ran out"),
        ("crash in a step", r"exit code 3\): RuntimeError: CUDA error: an illegal memory access"),
        ("memory in a step", r"^vLLM: out of device memory \(OutOfMemoryError: CUDA out of memory\. Tried"),
        ("hang in a step", r"gave no answer to 'prepare' for \d+ s and was ended"),
    ],
)
def test_what_ends_a_worker_is_one_line_with_its_log(what, says, monkeypatch, tmp_path):
    monkeypatch.setenv("CHIP_ENGINE_STAND_IN", what)
    with vllm.open(job()) as session:
        session.job = replace(session.job, timeout_s=0.5 if "hang" in what else 60.0)  # of the step only
        with pytest.raises(Lost, match=says) as e:
            session.measure(Scenario(2, 8, 4), 2)
        (log,) = logs(tmp_path)
        assert str(e.value).endswith(f"log: {log}")
        assert "\n" not in str(e.value)
        with pytest.raises(Lost, match=says):  # and so does everything that is asked later
            session.measure(Scenario(1, 8, 4), 2)
    assert log.exists()
    monkeypatch.delenv("CHIP_ENGINE_STAND_IN")
    with vllm.open(job()) as again:
        assert again.measure(Scenario(2, 8, 4), 2).status == "ok"


def test_a_killed_worker_costs_one_point_of_a_grid(monkeypatch, tmp_path):
    monkeypatch.setenv("CHIP_ENGINE_STAND_IN", "killed in a step of 3")
    ledger = grid.RunsFile(tmp_path / "runs.json", open_device("cpu"))
    plan = grid.SessionPlan("vllm", job(), tuple(Scenario(batch, 8, 3) for batch in (2, 3, 4)))
    said = []
    found = grid.measure([plan], ledger, 2, said.append)
    assert [r.status for r in found] == ["ok", "failed", "ok"]
    assert "killed by SIGKILL" in found[1].reason
    assert len(said) == 1
    assert runs.read(tmp_path / "runs.json")[1].runs == tuple(found)


def test_a_start_that_hangs_or_fails(monkeypatch):
    monkeypatch.setenv("CHIP_ENGINE_STAND_IN", "hang in open")
    with pytest.raises(Lost, match="gave no answer to 'open'"):
        vllm.open(job(timeout_s=1.0))
    monkeypatch.delenv("CHIP_ENGINE_STAND_IN")
    with pytest.raises(Lost, match=r"^vLLM: ValueError: prefix caching must be off; log: "):
        vllm.open(job(settings={"enable_prefix_caching": "true"}))


def test_not_installed_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.delenv("CHIP_ENGINE_PYTHONPATH")
    if importlib.util.find_spec("vllm"):
        pytest.skip("vLLM is installed here")
    with pytest.raises(ChipError, match=r"^vLLM is not installed for \S+: pip install vllm there, or point --python"):
        vllm.open(job(python=sys.executable))
    with pytest.raises(ChipError, match=r"cannot be started with /no/python \(No such file or directory\); check --py"):
        vllm.open(job(python="/no/python"))


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(ChipError, match="runs on a CUDA device, not on cpu"):
        vllm.open(job(device="cpu"))
    with pytest.raises(ChipError, match="--sdpa is for the hf engines"):
        vllm.open(job(sdpa="flash"))


def test_the_worker_sees_one_device_and_what_is_meant_for_it(monkeypatch):
    assert "CUDA_VISIBLE_DEVICES" not in vllm.environment(job())
    assert vllm.environment(job(device="cuda:2"))["CUDA_VISIBLE_DEVICES"] == "2"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    assert vllm.environment(job(device="cuda:1"))["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    with pytest.raises(ChipError, match="cuda:2: CUDA_VISIBLE_DEVICES shows only 2"):
        vllm.environment(job(device="cuda:2"))
    assert vllm.environment(job())["PYTHONPATH"] == str(STAND_IN)
    assert not [k for k in vllm.environment(job()) if k.startswith("CHIP_ENGINE_")]


def test_a_config_has_one_folder_for_ever(tmp_path):
    assert vllm.config_folder(CONFIG) == vllm.config_folder(dict(reversed(CONFIG.items())))
    assert vllm.config_folder({**CONFIG, "vocab_size": 9}) != vllm.config_folder(CONFIG)


def test_a_worker_that_speaks_something_else_is_ended():
    with pytest.raises(Lost, match="answered 'open' with something that is not JSON"):
        VllmWorker([sys.executable, "-c", "input(); print('hello'); input()"], os.environ, "It").ask(
            "open", time.monotonic() + 60
        )
    assert ending(-11) == "killed by SIGSEGV"


# -- inside the worker ------------------------------------------------------------------------------------------------
@pytest.fixture
def server(monkeypatch):
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    made = vllm_worker.EngineServer()
    spec = importlib.util.spec_from_file_location("vllm", STAND_IN / "vllm" / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "vllm", module)
    spec.loader.exec_module(module)
    made.open("folder", "bfloat16", True, {})
    return made


@pytest.mark.parametrize("asynchronous", [True, False])
def test_stamps_are_those_of_the_slowest_request(server, asynchronous):
    server.llm.llm_engine.engine_core.config.async_scheduling = asynchronous
    server.prepare(batch=3, prompt=50, output=4, prompt_ids=[])
    seen, take = [], server.tap.take
    server.tap.take = lambda: seen.append(take()) or seen[-1]
    at, finished = server.once(4)
    assert len(at) == 5
    assert len(finished) == 3
    assert all(b > a for a, b in pairwise(at))
    given = [[o.request_id for o in outputs.outputs] for outputs in seen]
    assert max(map(len, given)) < 3 or given[0] != given[-1]  # 64 tokens a step: the third prompt came later
    counts = {r: sum(g.count(r) for g in given) for r in {i for g in given for i in g}}
    assert set(counts.values()) == {4}


def test_repeats_go_on_until_energy_is_measured_and_stop_at_the_time_limit(server):
    server.prepare(batch=1, prompt=8, output=3, prompt_ids=[1, 2, 3])
    assert server.prompts == [{"prompt_token_ids": [1, 2, 3]}]
    longer = server.repeat(3, 2, least_seconds=0.4, most_seconds=9)
    assert len(longer["ttft_ns"]) == 2
    assert longer["runs"] > 2, "a run takes milliseconds, on busy cores up to 0.1 s"
    assert longer["seconds"] >= 0.4
    shorter = server.repeat(3, 50, least_seconds=0, most_seconds=0)
    assert len(shorter["ttft_ns"]) == shorter["runs"] == 2
    assert len(shorter["tokens"][0]) == 3


def test_the_launch_latency_is_measured_between_repeats_without_a_meter(server, monkeypatch):
    latencies = iter(range(1, 99))
    monkeypatch.setattr(vllm_worker, "launch_ns", lambda: next(latencies))
    server.prepare(batch=1, prompt=8, output=6, prompt_ids=[1, 2, 3])
    assert server.repeat(6, 3, least_seconds=0, most_seconds=9)["launch_ns"] == [1, 2, 3, 4]
    assert server.repeat(2, 3, least_seconds=0, most_seconds=9)["launch_ns"] == [5, 6], "would rest the device"
    assert server.repeat(6, 3, least_seconds=0.01, most_seconds=9)["launch_ns"] == [], "would cost joules"


def test_a_profiled_decode_launches_just_its_steps(server, monkeypatch):
    server.prepare(batch=3, prompt=50, output=4, prompt_ids=[])
    core = server.llm.llm_engine.engine_core
    launched = []

    def profiled(work):
        before = core.launched
        work()
        launched.append(core.launched - before)
        alive = [r for r in core.requests if r.scheduled < r.most]
        launched.append(len(alive))
        return [("k", i * 100, i * 100 + 60) for i in range(8)]

    monkeypatch.setattr(vllm_worker, "profiled", profiled)
    monkeypatch.setattr(vllm_worker, "torch_cuda", lambda: True)
    found = server.profile(kernels=True)
    assert launched[0] == 3  # 150 tokens of prompts, 64 a step
    assert launched[2:] == [vllm_worker.PROFILED_STEPS, 3]
    assert found["decode"] == {"busy_ns": 120.0, "gaps_ns": 70.0, "launched": 2.0, "kernels": [["k", 2.0, 0.12]]}
    assert not server.llm.llm_engine.has_unfinished_requests()


def test_the_device_is_busy_once_where_kernels_overlap():
    events = [("a", 0, 100), ("b", 50, 150), ("a", 151, 200), ("c", 20_000, 20_100), ("d", 20_010, 20_020)]
    found = vllm_worker.on_device(events, 1, True)
    assert found["busy_ns"] == 150 + 49 + 100
    assert found["gaps_ns"] == 1  # the long pause is the host's
    assert found["kernels"][0] == ["a", 2.0, 0.149]


def test_waits_are_named_with_the_largest_first():
    profile = {
        "prefill": {"busy_ns": 98e6, "gaps_ns": 1e6, "launched": 300},
        "decode": {"busy_ns": 2e6, "gaps_ns": 0.3e6, "launched": 200.0},
    }
    said = vllm.waits(profile, {"prefill": 100e6, "decode": 4e6})
    assert said == (
        "decode: the host, which schedules and launches, 1.70 of 4.00 ms",
        "decode: the next kernel, short pauses among 200, 0.30 of 4.00 ms",
    )


def test_random_weights_are_refilled_in_place():
    import torch

    model = torch.nn.ModuleDict(
        {"embed_tokens": torch.nn.Embedding(64, 32), "proj": torch.nn.Linear(32, 64), "norm": torch.nn.LayerNorm(32)}
    )
    addresses = [p.data_ptr() for p in model.parameters()]
    for experts, spread in ((False, 0.02), (True, 1.0)):
        vllm_worker.refill(model, experts)
        assert model["embed_tokens"].weight.std().item() == pytest.approx(spread, rel=0.1)
        assert model["proj"].weight.std().item() == pytest.approx(0.02, rel=0.1)
        assert model["norm"].weight.tolist() == [1.0] * 32
        assert model["proj"].bias.tolist() == [0.0] * 64
    assert [p.data_ptr() for p in model.parameters()] == addresses


def test_quantised_weights_are_refilled_too():
    import torch

    model = torch.nn.Module()

    def parameter(name, tensor):
        model.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))

    fp8 = torch.float8_e4m3fn
    parameter("weight", torch.zeros(64, 32).to(fp8).t())  # as the engine keeps it: turned
    parameter("weight_scale", torch.zeros(1))
    parameter("weight_packed", torch.zeros(32, 64, dtype=torch.int32))
    parameter("scales", torch.zeros(4, 64, dtype=torch.bfloat16))
    parameter("k_scale", torch.ones(1))
    parameter("g_idx", torch.arange(32, dtype=torch.int32))
    addresses = [p.data_ptr() for p in model.parameters()]
    vllm_worker.refill(model, experts=False)
    spread = (model.weight.float() * model.weight_scale).std().item()
    assert spread == pytest.approx(0.02, rel=0.1)
    values = torch.stack([(model.weight_packed >> shift) & 15 for shift in range(0, 32, 4)]).float() - 8
    assert (values.std() * model.scales.float().mean()).item() == pytest.approx(0.02, rel=0.1)
    assert (model.k_scale.item(), model.g_idx.tolist()) == (1.0, list(range(32)))
    assert [p.data_ptr() for p in model.parameters()] == addresses


def test_a_run_is_recorded_in_the_precision_it_was_served_in():
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    quantised = {**CONFIG, **sizes, "quantization_config": {"quant_method": "fp8"}}
    for config, settings, engine, found in (
        (CONFIG, {}, "vllm", ("bf16", "auto")),
        (CONFIG, {"quantization": "fp8"}, "vllm", ("fp8", "auto")),
        (CONFIG, {"quantization": "fp8", "kv_cache_dtype": "fp8_e4m3"}, "vllm", ("fp8", "fp8")),
        (CONFIG, {"kv_cache_dtype": "auto"}, "vllm", ("bf16", "auto")),
        (quantised, {}, "vllm", ("fp8", "auto")),
        (quantised, {}, "hf-eager", ("bf16", "auto")),  # random weights are made in 16 bits there
    ):
        job = Job("tiny", config, settings=settings)
        assert (vllm.formats(job) if engine == "vllm" else job.formats) == found
    with pytest.raises(ChipError, match="quantization=awq_marlin: a run in it could not be predicted"):
        vllm.formats(Job("tiny", CONFIG, settings={"quantization": "awq_marlin"}))


def test_a_quantised_run_is_passed_through_and_recorded():
    with vllm.open(job(settings={"quantization": "fp8", "kv_cache_dtype": "fp8"})) as session:
        run = session.measure(Scenario(2, 16, 3, "fp8", kv_dtype="fp8"), 2)
    assert run.variant == "kv_cache_dtype=fp8,quantization=fp8"
    assert run.settings["arguments"]["quantization"] == "fp8"
    assert run.settings["arguments"]["kv_cache_dtype"] == "fp8"
    assert (run.scenario.dtype, run.scenario.kv_dtype) == ("fp8", "fp8")


def test_a_folder_without_tokenizer_is_opened_without(tmp_path):
    assert "skip_tokenizer_init" not in vllm.arguments(Job("tiny", CONFIG))
    assert vllm.arguments(Job("tiny", CONFIG, folder=tmp_path))["skip_tokenizer_init"] is True
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "skip_tokenizer_init" not in vllm.arguments(Job("tiny", CONFIG, folder=tmp_path))


def test_settings_are_said_in_json():
    import torch

    value = {"dtype": torch.bfloat16, "sizes": {3, 1}, "inf": float("inf"), "what": object(), "path": Path("/a")}
    assert vllm_worker.plain(value) == {"dtype": "torch.bfloat16", "sizes": [1, 3], "inf": "inf", "path": "/a"}


# -- energy and text --------------------------------------------------------------------------------------------------
class Meter:
    """100 W while asked, whatever runs."""

    def start(self):
        pass

    def stop(self):
        return EnergyReading(200.0, 2.0, "a meter", 230.0)


def session(**changes):
    made = object.__new__(vllm.VllmSession)
    made.job, made.meter, made.idle_w = job(**changes), Meter(), 40.0
    made.opened = {"experts": True}
    return made


def answer(seconds, count, **more):
    return {"seconds": seconds, "runs": count, "ttft_ns": [1] * count, "tokens": [[7, 8]] * 4, **more}


def test_joules_of_prefill_and_decode_add_up():
    made = session()
    made.worker = SimpleNamespace(ask=lambda what, until, output, **_: answer(1.5, 4 if output > 1 else 10))
    energy = made._energy(9, 0.0)  # 1.5 s of work and 0.5 s of idling
    assert energy.prefill_j == pytest.approx((200 - 40 * 2.0) / 10)
    assert energy.decode_j == pytest.approx((200 - 40 * 2.0) / 4 - energy.prefill_j)
    assert energy.counter_j == pytest.approx((200 - 40 * 0.5) / 4)
    assert energy.flags == ("energy counter and integrated power differ by 17%",)
    made.idle_w = NotAvailable("no meter")
    assert made._energy(9, 0.0) is None


def test_flags_name_what_a_reader_must_know():
    flags = session()._flags(Scenario(4, 8, 2), 5, answer(2.0, 4))
    assert flags == (
        "4 of 5 repeats in 60 s (--max-seconds)",
        "1 different tokens in a step of 4: random weights choose fewer experts than text does",
    )


def test_real_text_comes_back_as_text(monkeypatch, tmp_path):
    made = session(folder=tmp_path, prompt_ids=(1, 2))
    stand_in = SimpleNamespace(decode=lambda folder, rows, trust: tuple(map(str, rows)))
    monkeypatch.setitem(sys.modules, "chip.lab.run.text", stand_in)
    assert made._generated_text([[1, 2], [3]]) == ("[1, 2]", "[3]")
    assert session()._generated_text([[1, 2]]) == ()
