"""Predictions: the JSON contract, its identities, exact numbers on a round GPU, formats, memory, a growing context."""

import json

import pytest
from asking import BARE, TIMES, answer, predict, setting
from round_profiles import round_profile, write_profile

import chip
from chip import engines, ops
from chip.decoders import describe, library
from chip.hardware import gpus as hardware
from chip.predictor import operator, request
from chip.predictor.estimator import Estimator
from chip.predictor.roof import roof_of
from chip.predictor.stages import Stage
from chip.question import DEFAULTS
from chip.types import Ceiling, ChipError, Scenario

ENGINES = engines.names()
KEYS = {
    "schema", "model", "gpu", "engine", "host", "batch", "prompt", "output", "dtype", "kv_dtype", "tp", "pp", "ep",
    "gpus", "ttft_ms", "tpot_ms", "request_tpot_ms", "e2e_ms", "tokens_per_s", "interval", "memory", "breakdown",
    "bound", "sources", "rests_on", "notes", "ridge_flop_per_byte", "nearest_validated",
}  # fmt: skip


def refusal(**asked):
    with pytest.raises(ChipError) as told:
        answer(**asked)
    assert "\n" not in str(told.value)
    return str(told.value)


# --- the contract


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("model", ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gemma-2-2b"])
def test_contract(model, engine):
    if engine == "native" and model != "llama-3.1-8b":
        with pytest.raises(ChipError, match="native cannot run"):
            answer(model, engine=engine)
        return
    a = answer(model, engine=engine, batch=3, prompt=500, output=20)
    assert set(a) - {"energy_j_per_token"} == KEYS
    assert a["schema"] == "chip.prediction/1"
    assert set(a["interval"]) - {"energy_j_per_token"} == set(TIMES)
    for name in TIMES:
        low, high = a["interval"][name]
        assert 0 < low <= a[name] <= high
    assert a["e2e_ms"] == pytest.approx(a["ttft_ms"] + 19 * a["tpot_ms"], rel=1e-6)
    assert a["tokens_per_s"] == pytest.approx(3 * 20 / a["e2e_ms"] * 1e3, rel=1e-6)
    assert sum(a["sources"].values()) == pytest.approx(1, abs=1e-3)
    for phase in ("ttft", "tpot"):
        rows = a["breakdown"][phase]
        assert sum(r["us"] for r in rows) == pytest.approx(1e3 * a[f"{phase}_ms"], rel=1e-5)
        assert sum(r["share"] for r in rows) == pytest.approx(1, abs=1e-3)
        assert [r["us"] for r in rows] == sorted((r["us"] for r in rows), reverse=True)
        assert len({r["role"] for r in rows}) == len(rows)
        assert all(r["bound"] in ("compute", "memory", "launch", "host", "link") for r in rows)
        assert a["bound"][phase] in {r["bound"] for r in rows}
        assert set(rows[0]) == {"role", "op", "count", "us", "share", "bound", "source", "flops", "bytes"}


def test_one_line_and_one_document_say_the_same():
    asked = {"model": "qwen3-30b-a3b", "gpu": "l40s", "batch": 2, "prompt": 77, "output": 5, "tp": 2}
    line = request.answer_line(asked)
    assert "\n" not in line
    assert json.loads(line) == {k: v for k, v in request.answer(asked).items() if k != "nearest_validated"}


def test_one_output_token_has_no_time_per_token():
    a = answer(output=1)
    assert a["tpot_ms"] is None
    assert a["interval"]["tpot_ms"] is None
    assert a["bound"]["tpot"] is None
    assert a["breakdown"]["tpot"] == []
    assert a["e2e_ms"] == a["ttft_ms"]


def test_what_is_not_asked_is_at_its_default():
    a = request.answer({"model": "gpt2"})
    assert {k: a[k] for k in DEFAULTS} == {**DEFAULTS, "dtype": "bf16", "kv_dtype": "bf16"}
    given = {**DEFAULTS, "gpu": "l4", "batch": 7}
    b = json.loads(request.answer_line({"model": "gpt2", "batch": 2}, given))
    assert (b["gpu"], b["batch"]) == ("l4", 2)


def test_a_rate_too_low_for_decimals_keeps_its_digits():
    a = answer("llama-3.1-405b", "t4", dtype="fp16", prompt=10_000_000, output=1, engine="hf-eager")
    assert a["tokens_per_s"] == pytest.approx(1e3 / a["e2e_ms"], rel=1e-6)


# --- exact numbers


def asked_of(gpu, **op):
    """As measured ceilings alone have it."""
    made = ops.build(op.pop("op"), op)
    time = Estimator(roof_of(hardware.find(gpu), Stage.MEASURED), None).time(made)
    assert (time.flops, time.bytes) == (made.cost().flops, made.cost().bytes)
    return time, made.cost()


def test_an_operator_by_hand(round_gpu):
    e, cost = asked_of(round_gpu, op="linear", m=8, n=4096, k=4096)
    moved = 2 * (8 * 4096 + 4096 * 4096 + 8 * 4096)
    assert cost.flops == 2 * 8 * 4096 * 4096
    assert cost.bytes == moved
    assert e.seconds == pytest.approx(1e-6 + moved / 1e12)
    assert (e.low_s, e.high_s) == pytest.approx((0.9e-6 + moved / 1.1e12, 1.1e-6 + moved / 0.9e12))
    assert (e.bound, e.source) == ("memory", "roofline")
    e, _ = asked_of(round_gpu, op="linear", m=4096, n=4096, k=4096)
    assert e.seconds == pytest.approx(1e-6 + 2 * 4096**3 / 1e14)
    assert e.bound == "compute"
    e, _ = asked_of(round_gpu, op="add", rows=1, cols=10)
    assert e.seconds == pytest.approx(1e-6 + 60 / 1e12)
    assert e.bound == "launch"


def test_an_operator_without_points_is_the_documented_roofline(round_gpu):
    """The launch floor and the longer of arithmetic and memory: no tiles that a GPU of another kind was fitted with."""
    for m in (1, 8, 64, 4096):
        a = operator.answer({"op": "linear", "gpu": round_gpu, "m": m, "n": 4096, "k": 4096})
        e, cost = asked_of(round_gpu, op="linear", m=m, n=4096, k=4096)
        assert a["us"] * 1e-6 == pytest.approx(e.seconds)
        assert a["interval"][0] < a["us"] < a["interval"][1]
        assert (a["source"], a["ridge_flop_per_byte"], a["flops"]) == ("roofline", 100, cost.flops)


TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
    "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32,
}  # fmt: skip


def test_a_tiny_model_by_hand(round_gpu):
    """One decode step of a model so small that every kernel is its launch and a few bytes."""
    d = describe(TINY, "tiny", "tiny.json")
    a = predict(d, round_gpu, "hf-eager", Scenario(1, 4, 2), BARE).json()
    calls = 2 + 3 * (2 + 3 + 1 + 1 + 1 + 2 + 1 + 1 + 2) + 1 + 2  # embed, angles; norms, qkv, rope, ...; norm; head
    assert sum(r["count"] for r in a["breakdown"]["tpot"]) == calls
    norm, angles, rope, attention = 8, 10, 10, 4  # kernels of one call, in HF's spelling
    kernels = 1 + angles + 3 * (2 * norm + 3 + rope + attention + 1 + 2 + 1 + 1 + 2) + norm + 2
    assert a["tpot_ms"] == pytest.approx(kernels * 1e-3, rel=1e-3)
    assert a["bound"]["tpot"] == "launch"
    attention = next(r for r in a["breakdown"]["tpot"] if r["role"] == "attention")
    assert attention["flops"] == 3 * 2 * 2 * 5 * (4 + 4)  # layers, multiply and add, heads, 5 keys, score and value
    assert attention["bytes"] == 3 * 2 * (8 + 3 * 5 * 1 * (4 + 4) + 8)  # keys and values: copied, and read
    assert a["memory"]["kv_bytes_per_token"] == 3 * 2 * 4 * 2
    assert a["memory"]["weights_bytes"] == 2 * d.params()


def test_the_settled_rate_counts_where_it_was_measured(tmp_path):
    ceilings = round_profile().ceilings
    settled = Ceiling(0.8e14, 0.7e14, 0.9e14, "FLOP/s", "made up")
    gpu = write_profile(tmp_path / "s.json", round_profile(ceilings={**ceilings, "matmul_bf16_settled": settled}))
    a = operator.answer({"op": "linear", "gpu": gpu, "m": 8192, "n": 8192, "k": 8192})
    assert a["us"] == pytest.approx(2 * 8192**3 / 0.8e8, rel=0.01)
    assert a["ridge_flop_per_byte"] == 80


def test_energy_where_the_power_model_was_measured(tmp_path, round_gpu):
    power = {
        "idle_power": Ceiling(100, 90, 110, "W", "made up"),
        "joules_per_flop_bf16": Ceiling(1e-12, 0.9e-12, 1.1e-12, "J/FLOP", "made up"),
        "joules_per_byte_copy": Ceiling(1e-10, 0.9e-10, 1.1e-10, "J/B", "made up"),
    }
    gpu = write_profile(tmp_path / "p.json", round_profile(power=power))
    a = answer(gpu=gpu, batch=4, prompt=128, output=3)
    low, high = a["interval"]["energy_j_per_token"]
    assert low < a["energy_j_per_token"] < high
    rows = [(1, r) for r in a["breakdown"]["ttft"]] + [(2, r) for r in a["breakdown"]["tpot"]]
    moved = sum(n * r["bytes"] for n, r in rows)
    flops = sum(n * r["flops"] for n, r in rows if r["op"] in ("linear", "attention"))
    assert a["energy_j_per_token"] * 12 == pytest.approx(
        100 * a["e2e_ms"] / 1e3 + 1e-12 * flops + 1e-10 * moved, rel=1e-4
    )
    assert "energy_j_per_token" not in answer(gpu=round_gpu)


# --- number formats


def test_narrow_weights_decode_faster():
    tpot = {dtype: answer("llama-3.1-8b", "h100", dtype=dtype)["tpot_ms"] for dtype in ("fp32", "bf16", "int8", "int4")}
    assert tpot["fp32"] > 1.5 * tpot["bf16"]
    assert tpot["bf16"] > 1.1 * tpot["int8"]  # Machete gains little by int8: 1.12 was measured on an H200
    assert tpot["int8"] > 1.1 * tpot["int4"]


def test_fewer_bytes_of_weights_never_take_longer():
    """Batch 1, on every GPU that vLLM's packed kernels run on."""
    for gpu in (g["name"] for g in chip.gpus()):
        spec = hardware.find(gpu).spec
        if spec and spec.vendor == "nvidia" and hardware.capability(hardware.find(gpu)) >= 8.0:
            times = [chip.predict("llama-3.1-8b", gpu=gpu, dtype=d).tpot_s for d in ("bf16", "int8", "int4")]
            assert times == sorted(times, reverse=True), gpu


def test_weight_only_formats_multiply_in_16_bits():
    compute = {"batch": 8, "prompt": 2048, "engine": "hf-eager"}
    ttft = {dtype: answer("llama-3.1-8b", "h100", dtype=dtype, **compute)["ttft_ms"] for dtype in ("bf16", "int4")}
    assert ttft["int4"] == pytest.approx(ttft["bf16"], rel=0.06)
    assert answer("llama-3.1-8b", "h100", dtype="fp8", **compute)["ttft_ms"] < 0.85 * ttft["bf16"]


def test_a_format_the_gpu_lacks_is_refused():
    assert refusal(gpu="a100", dtype="fp8", engine="hf-eager").startswith("a100 has no fp8 matrix rate; it has bf16, ")
    assert refusal(gpu="t4").startswith("t4 has no bf16 matrix rate")
    assert "dtype 'bf61' is not known; choose one of bf16, fp16" in refusal(dtype="bf61")


def test_weight_only_formats_fall_back_to_fp16_on_older_gpus():
    assert answer("phi-2", "t4", dtype="int8")["tpot_ms"] < answer("phi-2", "t4", dtype="fp16")["tpot_ms"]


# --- several GPUs


@pytest.mark.parametrize("model", ["llama-3.1-70b", "mixtral-8x7b", "deepseek-v3"])
def test_tensor_parallel_shares_weights_and_reduces(model):
    one, four = (answer(model, "h100", tp=tp) for tp in (1, 4))
    assert one["memory"]["weights_bytes"] / 4.2 < four["memory"]["weights_bytes"] < one["memory"]["weights_bytes"] / 3.8
    assert four["ttft_ms"] < one["ttft_ms"]
    assert four["tpot_ms"] < one["tpot_ms"]
    for phase in ("ttft", "tpot"):
        reduces = [r for r in four["breakdown"][phase] if r["op"] == "all_reduce"]
        assert sum(r["count"] for r in reduces) == 2 * library.find(model).layer_count
        assert {r["bound"] for r in reduces} == {"link"}
        assert not [r for r in one["breakdown"][phase] if r["op"] == "all_reduce"]
    assert four["memory"]["kv_bytes"] <= one["memory"]["kv_bytes"]


def test_tensor_parallel_that_cannot_be():
    assert refusal(tp=3) == "--tp 3 does not divide the 32 attention heads of llama-3.1-8b"
    assert refusal(tp=0) == "tp must be between 1 and 1024, got 0"


def test_a_gpu_without_a_known_link(tmp_path):
    gpu = write_profile(tmp_path / "alone.json", round_profile(spec=""))
    assert "several GPUs cannot be predicted of round: its profile has no datasheet" in refusal(gpu=gpu, tp=2)
    assert answer(gpu=gpu)["ttft_ms"] > 0


# --- memory


def test_a_model_that_does_not_fit_says_so():
    a = answer("llama-3.1-70b", "l4")
    assert a["memory"]["fits"] is False
    assert a["memory"]["max_batch"] == 0
    assert a["notes"][0].startswith("does not fit: needs 13")
    assert a["ttft_ms"] > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_the_largest_batch_is_the_largest_that_fits(engine):
    most = answer("qwen2.5-7b", engine=engine, prompt=12_000, output=100)["memory"]["max_batch"]
    assert most > 1
    for batch, fits in ((most - 1, True), (most + 2, False)):
        assert answer("qwen2.5-7b", engine=engine, prompt=12_000, output=100, batch=batch)["memory"]["fits"] is fits


def test_memory_of_a_cache():
    m = answer("llama-3.1-8b", engine="hf-eager", batch=4, prompt=100, output=28)["memory"]
    assert m["kv_bytes_per_token"] == 131_072
    assert m["kv_bytes"] == 4 * 128 * 131_072
    assert m["total_bytes"] == pytest.approx(
        m["weights_bytes"] + m["kv_bytes"] + m["activation_bytes"] + m["context_bytes"], abs=2
    )
    fixed = answer("llama-3.1-8b", engine="hf-graph", batch=4, prompt=100, output=28)["memory"]
    assert fixed["kv_bytes"] == 4 * (100 + 64) * 131_072  # a static cache has room for 64 tokens at least
    waiting = answer("llama-3.1-8b", "l40s", batch=1000, prompt=100, output=28)["memory"]
    assert waiting["kv_bytes"] == 256 * 128 * 131_072  # no more run at once


def test_a_context_beyond_the_models_is_noted():
    assert (
        "prompt + output exceed the model's context of 1024 tokens" in answer("gpt2", prompt=1000, output=25)["notes"]
    )
    assert not [n for n in answer("gpt2", prompt=1000, output=24)["notes"] if "context" in n]


# --- the growing context


@pytest.mark.parametrize("engine", ["hf-eager", "vllm"])
@pytest.mark.parametrize(
    ("model", "batch", "prompt", "output"),
    [
        ("llama-3.1-8b", 64, 1, 2000),
        ("llama-3.1-8b", 1, 1000, 500),
        ("gpt2", 200, 10, 1000),
        ("mixtral-8x7b", 32, 500, 1000),
        ("deepseek-v3", 64, 100, 3000),
    ],
)
def test_a_context_integrated_is_the_one_walked(model, batch, prompt, output, engine, round_gpu):
    held = setting(library.find(model), round_gpu, engine, "bf16", 1, BARE)
    c = held.steps

    def seconds(s):  # of full steps: those of fewer requests at the end left out
        return c.phase(((c.engine.decode(s, c.options), 1.0),)).seconds

    walked = [seconds(Scenario(batch, prompt + i, 2)) for i in range(0, output - 1, 7)]
    assert seconds(Scenario(batch, prompt, output)) == pytest.approx(sum(walked) / len(walked), rel=0.01)


@pytest.mark.parametrize("output", [9, 17, 33, 129])
@pytest.mark.parametrize(
    ("batch", "prompt"), [(64, 1024), (64, 768), (17, 1024), (3, 16000), (40, 2000), (200, 500), (33, 512)]
)
def test_last_steps_are_of_those_requests_that_are_left(batch, prompt, output):
    """Against vLLM's scheduler walked step by step until the last request has ended."""
    held = setting(library.find("llama-2-7b"), "h200", "vllm", "bf16", 1)
    c = held.steps
    budget, waiting, begun, left = 16384, batch, 0, []  # `left`: tokens that each running request still has to make
    steps = []
    while waiting or any(left):
        counted = len([n for n in left if n])
        left, room = [n - 1 if n else 0 for n in left], budget - counted
        while waiting and room:
            new = min(prompt - begun, room)
            begun, room = begun + new, room - new
            if begun == prompt:
                begun, waiting, left = 0, waiting - 1, [*left, output - 1]
        if not waiting:
            steps.append(len([n for n in left if n]))  # that the next step has
    walked = [n for n in steps if n]
    assert len(walked) == output - 1
    expected = sum(
        c.phase(((c.engine.decode(Scenario(n, prompt + i, 2), c.options), 1.0),)).seconds for i, n in enumerate(walked)
    )
    found = c.decode(Scenario(batch, prompt, output))
    steady_s = found.seconds - sum(n.seconds for n in found.lines if n.role == "clock_recovery")
    assert steady_s * (output - 1) == pytest.approx(expected, rel=0.04)


@pytest.mark.parametrize("model", ["mistral-7b-v0.1", "gemma-2-9b", "gpt-oss-20b"])
def test_a_context_that_outgrows_its_window(model, round_gpu):
    """Three points see the bend of a window's cost only roughly; attention is then a small part."""
    held = setting(library.find(model), round_gpu, "hf-eager", "bf16", 1, BARE)
    c = held.steps
    integrated = c.decode(Scenario(8, 1000, 6000))
    walked = [c.decode(Scenario(8, 1000 + i, 2)).seconds for i in range(0, 5999, 20)]
    assert integrated.seconds == pytest.approx(sum(walked) / len(walked), rel=0.005)
