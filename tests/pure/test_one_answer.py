"""One question, one answer, wherever it is asked: a batch predicted, the same batch simulated at once, a plan, Python,
CSV, JSON and the server, from one set of defaults."""

import csv
import io
import json
import random
import subprocess
import sys

import pytest

import chip
from chip.decoders import library
from chip.question import SYSTEM
from chip.show import cli
from chip.show.serve import api as server
from chip.simulator.simulation import simulate
from chip.types import ChipError

GPUS = ("h200", "h100", "l40s", "b200")
OUTPUT = 64


def cases():
    """Every bundled model, quantised ones on every GPU, the others on one each; a split and a batch each."""
    draw = random.Random(7)
    for name in library.names():
        for gpu in GPUS if library.find(name).quantization else [draw.choice(GPUS)]:
            yield name, gpu, draw.choice((1, 2, 8)), draw.choice((1, 4, 16, 64)), draw.choice((64, 500, 2048))


def both(model, gpu, tp, batch, prompt):
    """Figures predicted and simulated, in ms; None where the batch does not fit."""
    p = chip.predict(model, gpu=gpu, tp=tp, batch=batch, prompt=prompt, output=OUTPUT)
    if not p.memory["fits"] or prompt + OUTPUT > p.memory["max_model_len"]:
        return None
    s = simulate(
        model, gpu=gpu, tp=tp, workload=f"batch:prompt={prompt},output={OUTPUT}", requests=batch, draws=0,
        engine_settings={"max_model_len": prompt + OUTPUT + 1},
    )  # fmt: skip
    assert (s.fleet.question.dtype, s.kv_dtype) == (p.scenario.dtype, p.scenario.kv_dtype)
    simulated = s.ttft_s.p99 * 1e3, max(s.served.last_s) * 1e3
    return (p.ttft_s * 1e3, p.e2e_s * 1e3), simulated


def test_a_batch_simulated_at_once_is_the_batch_predicted():
    compared, off = 0, []
    for case in cases():
        try:
            found = both(*case)
        except ChipError:
            continue  # a format that the GPU does not have, heads that do not divide
        if found:
            compared += 1
            errors = [round(s / p - 1, 4) for p, s in zip(*found)]
            if max(map(abs, errors)) > 0.01:
                off.append((case, errors))
    assert compared > 60
    # the last step of a batch that waits for its host is not followed by another one to prepare
    assert all(errors[0] == pytest.approx(0, abs=0.025) and -0.025 < errors[1] < 0.025 for _, errors in off), off
    assert len(off) <= 0.1 * compared, off


@pytest.mark.parametrize("model", ["qwen3-32b-fp8", "llama-3.1-70b-awq", "gpt-oss-120b", "llama-3.2-1b"])
def test_every_front_end_gives_one_answer(model, capsys):
    asked = {"model": model, "gpu": "h200", "batch": 4, "prompt": 300, "output": OUTPUT}
    words = ["--gpu", "h200", "--batch", "4", "--prompt", "300", "--output", str(OUTPUT)]
    p = chip.predict(**asked).json()
    assert cli.main(["predict", model, *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(p))
    assert json.loads(server.predict(asked)) == json.loads(json.dumps(p))
    assert cli.main(["predict", model, *words, "--csv", "-"]) == 0
    (row,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    (again,) = chip.sweep(**asked)
    assert all(p[key] == again[key] == row[key] for key in ("dtype", "kv_dtype"))
    for name in ("ttft", "tpot"):
        assert [float(row[f"{name}_ms"]), p[f"{name}_ms"]] == pytest.approx([again[f"{name}_s"] * 1e3] * 2, rel=1e-6)
    simulated = simulate(model, gpu="h200", workload="batch:prompt=300,output=64", requests=4, draws=0).json()
    traffic = {k: asked[k] for k in ("model", "gpu", "prompt", "output")}
    served = json.loads(server.ASKED["/api/traffic"]({**traffic, "rates": [1.0], "requests": 20}))
    assert simulated["dtype"] == served["dtype"] == p["dtype"]
    plan = chip.plan(
        model, workload="poisson:prompt=300,output=64", rate=1, goals=f"tpot_p99={2 * p['tpot_ms']:.3g}ms",
        intervals=False, requests=20,
    ).json()  # fmt: skip
    assert plan["choices"][0]["dtype"] == p["dtype"]


def test_defaults_have_one_home():
    """The command line, Python and the server leave out the same."""
    parsers = [cli.parser(name) for name in ("predict", "simulate", "plan")]
    for name in ("gpu", "engine", "dtype", "kv_dtype", "tp", "pp", "ep", "host", "engine_version", "launch_ns"):
        for parser in parsers:
            given = parser.get_default(name)
            assert (given[0] if isinstance(given, list) else given) == SYSTEM[name]
    assert cli.parser("bench").get_default("dtype") == SYSTEM["dtype"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"max_num_seq": 3}, "did you mean max_num_seqs"),
        ({"tensor_parallel_size": 2}, "say it as --tp"),
        ({"enable_chunked_prefill": False}, "true is vLLM's default"),
        ({"gpu_memory_utilization": 1.5}, "must be between 0.01 and 1.0"),
    ],
)
def test_engine_settings_are_checked_alike(setting, message):
    for ask in (
        lambda: chip.predict("llama-3.2-1b", engine_settings=setting),
        lambda: simulate("llama-3.2-1b", workload="poisson", requests=3, engine_settings=setting),
    ):
        with pytest.raises(ChipError, match=message):
            ask()


@pytest.mark.parametrize(("word", "says"), [
    ("--max-num-seqs", "--engine-setting max_num_seqs=..."), ("--tensor-parallel-size", "here it is --tp"),
    ("--no-enable-prefix-caching", "--engine-setting enable_prefix_caching=false"),
])  # fmt: skip
@pytest.mark.parametrize("command", ["predict", "simulate", "plan"])
def test_options_of_vllm_are_answered_with_ours(command, word, says, capsys):
    more = {"predict": [], "simulate": ["--workload", "poisson"], "plan": ["--workload", "poisson", "--rate", "1"]}
    slo = ["--slo", "ttft_p99=1s"] if command == "plan" else []
    with pytest.raises(SystemExit):
        cli.main([command, "llama-3.2-1b", *more[command], *slo, word, "64"])
    assert says in capsys.readouterr().err


def test_settings_change_every_answer():
    few = {"max_num_seqs": 64}
    p = chip.predict("llama-3.2-1b", batch=1500, prompt=16, output=32, engine_settings=few)
    assert p.memory["max_batch"] == 64
    assert p.e2e_s > 1.1 * chip.predict("llama-3.2-1b", batch=1500, prompt=16, output=32).e2e_s
    at_once = simulate(
        "llama-3.2-1b", workload="batch:prompt=16,output=32", requests=1500, draws=0, engine_settings=few
    )
    assert max(at_once.served.last_s) == pytest.approx(p.e2e_s, rel=0.02)


@pytest.mark.parametrize(("batch", "prompt", "settings"), [(1500, 128, {}), (300, 512, {"max_num_seqs": 64})])
def test_more_requests_than_run_at_once_take_turns(batch, prompt, settings):
    """Each that ends makes room for one that waits."""
    p = chip.predict("llama-3.1-8b", batch=batch, prompt=prompt, output=128, engine_settings=settings)
    workload = f"batch:prompt={prompt},output=128"
    s = simulate("llama-3.1-8b", workload=workload, requests=batch, draws=0, engine_settings=settings)
    assert p.memory["max_batch"] <= 1024
    assert (p.ttft_s, p.e2e_s) == pytest.approx((max(s.served.first_s), max(s.served.last_s)), rel=0.01)


@pytest.mark.parametrize(("gpu", "batch", "prompt"), [("a100", 64, 1024), ("h200", 64, 2048), ("h200", 4, 512)])
def test_time_per_token_has_two_names_where_prompts_come_in_several_steps(gpu, batch, prompt):
    p = chip.predict("llama-3.1-8b", gpu=gpu, batch=batch, prompt=prompt, output=128).figures()
    workload = f"batch:prompt={prompt},output=128"
    s = simulate("llama-3.1-8b", gpu=gpu, workload=workload, requests=batch, draws=0)
    assert p["request_tpot_ms"] == pytest.approx(s.tpot_s.mean * 1e3, rel=0.015)
    assert (p["request_tpot_ms"] > 1.02 * p["tpot_ms"]) == (batch == 64)


def test_the_pool_follows_the_share_of_the_memory():
    """vLLM 0.26 on an H200 with gpu_memory_utilization 0.9: 891,392 tokens."""
    p = chip.predict("llama-3.1-8b", engine_settings={"gpu_memory_utilization": 0.9})
    assert p.memory["kv_capacity_tokens"] == pytest.approx(891_392, rel=0.005)


def test_a_context_that_does_not_fit_is_told_by_all():
    p = chip.predict("llama-3.1-8b", gpu="l4")
    assert p.memory["fits"]
    says = "vLLM does not start without max_model_len="
    assert any(says in note for note in p.notes)
    workload = "poisson:prompt=100,output=10"
    assert any(says in note for note in simulate("llama-3.1-8b", gpu="l4", workload=workload, draws=0).notes)
    plan = chip.plan("llama-3.1-8b", gpus=["l4"], workload=workload, rate=1, goals="tpot_p99=90ms", intervals=False,
                     requests=20)  # fmt: skip
    assert any(says in note for note in plan.choices[0].notes)


def test_an_answer_does_not_depend_on_what_was_asked_before():
    """fp8 with a scale for a token and for a tensor share the points that others published."""
    asked = [{"model": m, "gpu": g, "dtype": d, "batch": 8, "prompt": 500, "output": 4}
             for g in ("h100", "b200") for d in ("fp8", "nvfp4", "auto")
             for m in ("glm-4-9b", "qwen3-32b-fp8", "llama-3.1-8b", "gpt2")]  # fmt: skip
    script = (
        "import chip, json, sys\n"
        "for q in json.load(sys.stdin):\n"
        "    try: p = chip.predict(**q); print(json.dumps([q, p.ttft_s, p.tpot_s]))\n"
        "    except Exception as e: print(json.dumps([q, str(e)]))\n"
    )
    told = []
    for order in (asked, asked[::-1]):
        done = subprocess.run([sys.executable, "-c", script], input=json.dumps(order), capture_output=True, text=True)
        told.append(sorted(done.stdout.splitlines()))
    assert len(told[0]) == len(asked)
    assert told[0] == told[1]
