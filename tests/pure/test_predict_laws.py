"""Laws of predictions over random models and scenarios: an answer or one clear line, and no time less for more work."""

import json
import math
from dataclasses import replace

import pytest
from asking import BARE, numbers, predict, setting
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chip import engines
from chip.decoders import describe, library
from chip.hardware import gpus
from chip.predictor import request
from chip.predictor.estimator import Estimator
from chip.predictor.roof import Range, roof_of
from chip.predictor.steps import step_model
from chip.question import Question
from chip.types import ChipError, Scenario, Seq

ENGINES = engines.names()
OPTIONS = engines.get("vllm").options((), 80 * 2**30)


SIZES = st.sampled_from([1, 2, 3, 4, 7, 8, 16, 32, 64, 100, 128, 512])
BAD = st.sampled_from([0, -1, 10**12, 10**400, 1.5, float("nan"), "8", None, True, [], {}])
FAMILIES = {
    "LlamaForCausalLM": ("llama", {}),
    "MistralForCausalLM": ("mistral", {"sliding_window": SIZES}),
    "Qwen2ForCausalLM": ("qwen2", {"use_sliding_window": st.booleans(), "max_window_layers": SIZES}),
    "Qwen3ForCausalLM": ("qwen3", {"head_dim": SIZES}),
    "MixtralForCausalLM": ("mixtral", {"num_local_experts": SIZES, "num_experts_per_tok": SIZES}),
}


@st.composite
def configs(draw, valid):
    architecture = draw(st.sampled_from(sorted(FAMILIES)))
    model_type, more = FAMILIES[architecture]
    kv_heads = draw(st.integers(1, 4))
    heads = kv_heads * draw(st.integers(1, 4))
    raw = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": heads * draw(st.integers(1, 64)),
        "intermediate_size": draw(SIZES),
        "num_hidden_layers": draw(st.integers(1, 12)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": draw(SIZES),
        "max_position_embeddings": draw(SIZES),
        **{k: draw(v) for k, v in more.items()},
    }
    if "num_local_experts" in raw:
        raw["num_experts_per_tok"] = min(raw["num_experts_per_tok"], raw["num_local_experts"])
    if not valid:
        for field in draw(st.lists(st.sampled_from(sorted(raw)), min_size=1, max_size=3)):
            raw[field] = draw(BAD | SIZES)
    return raw


def answered(call):
    """(answer, None), or (None, the one line told instead)."""
    try:
        return call(), None
    except ChipError as e:
        return None, str(e)


SCENARIOS = st.builds(Scenario, st.integers(1, 80), st.integers(1, 5000), st.integers(1, 300))


@settings(deadline=None)
@given(configs(valid=False), SCENARIOS, st.sampled_from(ENGINES))
def test_any_config_gives_an_answer_or_one_clear_line(round_gpu, raw, s, engine):
    a, told = answered(lambda: predict(describe(raw, "it", "it.json"), round_gpu, engine, s).figures())
    if told:
        assert told.startswith(("it.json: ", "it: native cannot run Mixtral"))
        assert "\n" not in told
        assert len(told) < 1200
    else:
        assert all(math.isfinite(n) and n >= 0 for n in numbers(a))
        assert a["ttft_ms"] > 0


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "model": st.sampled_from(["gpt2", "mixtral-8x7b", "nosuch", "", "x.json"]) | BAD,
            "gpu": st.sampled_from(["h200", "t4", "sm_80:40", "sm_12:40GB", "nosuch", "x.json", ""]) | BAD,
            "engine": st.sampled_from([*ENGINES, "nosuch"]) | BAD,
            "batch": st.integers(-2, 10**7) | BAD,
            "prompt": st.integers(-2, 10**9) | BAD,
            "output": st.integers(-2, 10**9) | BAD,
            "dtype": st.sampled_from(["auto", "bf16", "fp8", "int4", "w8a8", "mxfp4", "nvfp4", "nosuch"]) | BAD,
            "kv_dtype": st.sampled_from(["auto", "bf16", "fp8", "nosuch"]) | BAD,
            "tp": st.integers(-1, 2000) | BAD,
            "bacth": st.just(1),
        },
    )
)
def test_any_scenario_gives_an_answer_or_one_clear_line(asked):
    a, told = answered(lambda: json.loads(request.answer_line(asked)))
    if told:
        assert "\n" not in told
        assert len(told) < 1200
    else:
        assert all(math.isfinite(n) and n >= 0 for n in numbers(a))
        assert a["e2e_ms"] >= a["ttft_ms"] > 0


def _is_indexed(name):
    return any(getattr(layer.attn, "index_heads", 0) for _, layer in library.find(name).layers)


NAMES = [name for name in library.names() if not _is_indexed(name)]  # an indexer multiplies in fp8 on any GPU


def more_of(s, what, by):
    return Scenario(**{k: getattr(s, k) + (by if k == what else 0) for k in ("batch", "prompt", "output")})


def seconds(decoder, gpu, engine, s):
    """TTFT, all, and TPOT: none where the last steps are of fewer requests, as the answer says. Their mean follows no
    law, their sum does."""
    p = predict(decoder, gpu, engine, s, BARE)
    decode = p.decode.seconds if p.decode else 0.0
    mean = () if any("TPOT is the mean of all steps" in note for note in p.notes) else (decode,)
    return p.prefill.seconds, p.prefill.seconds + (s.output - 1) * decode, *mean


def _described(raw):
    """None for what transformers would refuse too, such as heads of an odd size."""
    try:
        return describe(raw, "it", "it.json")
    except ChipError:
        return None


MODELS = st.sampled_from(NAMES).map(library.find) | configs(valid=True).map(_described).filter(bool)


@pytest.mark.parametrize("engine", ["hf-eager", "hf-graph"])
@settings(deadline=None)
@given(MODELS, SCENARIOS, st.sampled_from(["batch", "prompt", "output"]), st.integers(1, 2000))
def test_more_work_never_takes_less_time(round_gpu, engine, decoder, s, what, by):
    """Prompts of one token apart: hf-eager runs them as decode steps, which launch more kernels."""
    s = replace(s, prompt=s.prompt + 1)
    assume(not engines.get(engine).SERVES.refusal(engine, decoder.architecture, "bf16"))
    before = seconds(decoder, round_gpu, engine, s)
    after = seconds(decoder, round_gpu, engine, more_of(s, what, by))
    assert all(more >= less * (1 - 1e-12) for more, less in zip(after, before))  # but for the rounding of sums


@settings(max_examples=60, deadline=None)  # `make campaign` (physics.py) tries all models and GPUs
@given(MODELS, SCENARIOS, st.sampled_from(["batch", "prompt", "output"]), st.integers(1, 2000))
def test_more_work_never_takes_less_time_on_vllm(round_gpu, decoder, s, what, by):
    """To within 1 %: where prompts are cut into chunks, longer ones move the cuts, and a request that ends a step later
    decodes along in one step less; and a schedule of many steps is integrated where a shorter one is walked. Of models
    of a few columns all of the time is launches, and a chunk less is one launch less."""
    assume(decoder.hidden >= 64)
    before = seconds(decoder, round_gpu, "vllm", s)
    after = seconds(decoder, round_gpu, "vllm", more_of(s, what, by))
    assert all(more >= 0.99 * less for more, less in zip(after, before))


@settings(deadline=None)
@given(
    MODELS, SCENARIOS.filter(lambda s: s.batch * (s.prompt + 1) <= 4096), st.sampled_from(["batch", "prompt", "output"])
)
def test_more_work_never_takes_less_time_on_vllm_exactly_within_one_step(round_gpu, decoder, s, what):
    """Within a window, too: a prompt beyond it takes the share of a whole one that it computes, which may be less by
    some hundredths of a percent where all of it is launch latency."""
    dtype = Question.of(decoder, "h200", "vllm", s).with_formats().dtype
    windows = setting(decoder, round_gpu, "vllm", dtype, 1, BARE).steps.operators.windows
    assume(s.prompt < min(windows, default=math.inf))
    before = seconds(decoder, round_gpu, "vllm", s)
    after = seconds(decoder, round_gpu, "vllm", more_of(s, what, 1))
    assert all(more >= less * (1 - 1e-12) for more, less in zip(after, before))


@settings(deadline=None)
@given(st.sampled_from(NAMES), st.integers(1, 50), st.integers(1, 500))
def test_a_faster_gpu_is_never_slower(model, batch, prompt):
    slow = roof_of(gpus.find("a100"))
    d = library.find(model)
    twice = Range(2.0, 2.0, 2.0)
    fast = replace(slow, compute={k: r * twice for k, r in slow.compute.items()}, weights=slow.weights * twice)
    both = [step_model(d, request.precision("bf16"), 1, "vllm", Estimator(r, None), OPTIONS) for r in (slow, fast)]
    one, other = (m.prefill(Scenario(batch, prompt, 1)).seconds for m in both)
    assert other <= one


def test_a_sequence_is_a_value():
    assert Seq(1, 2) == Seq(1, 2, 1)
    assert Scenario(8, 512, 128).name == "pp512+tg128xb8"
