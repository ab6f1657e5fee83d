"""Engines: how they are found, which kernels they run, and which steps stand for a growing context."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chip import engines, ops
from chip.decoders import library
from chip.engines import chunked
from chip.predictor import request
from chip.types import ChipError


def test_engines_are_found_by_listing():
    assert engines.names() == ("hf-eager", "hf-graph", "native", "sglang", "trtllm", "vllm")
    assert tuple(engines.get(n).NAME for n in engines.names()) == engines.names()
    assert all(engines.get(n).TITLE for n in engines.names())
    with pytest.raises(ChipError, match="no engine 'vlm'; did you mean vllm"):
        engines.get("vlm")
    for shared in ("fuse", "hf", "timeline"):
        with pytest.raises(ChipError, match=f"no engine '{shared}'"):
            engines.get(shared)


def test_attention_over_pages_is_the_kernel_of_the_gpu():
    runs_as = engines.get("vllm").runs_as
    found = {c: runs_as(c)["attention"] for c in (0.0, 8.0, 8.9, 9.0, 10.0)}
    assert found == {
        0.0: "fa2|flash layer", 8.0: "fa2|flash layer", 8.9: "fa2|flash layer", 9.0: "fa3 layer",
        10.0: "flashinfer|fa2|flash layer",
    }  # fmt: skip
    assert runs_as(9.0, library.find("bloom-560m"))["attention"] == "fa2|flash layer"  # for its biases
    prefixed = replace(library.find("gemma-3-4b"), architecture="Gemma3ForConditionalGeneration")
    assert runs_as(9.0, prefixed)["attention"] == "triton layer"
    eager = engines.get("hf-eager")
    told = [eager.options(settings, 1e11) for settings in ((), (("sdpa", "flash"),))]
    assert [eager.runs_as(9.0, options=o)["attention"] for o in (None, *told)] == ["cudnn", "cudnn", "flash"]
    with pytest.raises(ChipError, match="setting sdpa: must be cudnn or flash, got 'math'"):
        eager.options((("sdpa", "math"),), 1e11)


# --- the growing context


@given(st.integers(0, 10_000), st.integers(1, 10_000), st.sets(st.integers(1, 20_000), max_size=2))
def test_context_points_stand_for_all_steps(first, steps, bends):
    points = chunked.decode_contexts(first, steps, bends)
    assert sum(weight for _, weight in points) == pytest.approx(1, abs=1e-12)
    assert len(points) <= 2 * (1 + len(bends))
    assert all(first <= past < first + steps for past, _ in points)
    mean = sum(past * weight for past, weight in points)
    assert mean == pytest.approx(first + (steps - 1) / 2)


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(1, 2000))
def test_context_points_only_move_up(first, steps, window):
    def mean(first, steps, grows=lambda past: past, bends=()):
        return sum(grows(past) * weight for past, weight in chunked.decode_contexts(first, steps, bends))

    assert mean(first + 1, steps) > mean(first, steps)
    assert mean(first, steps + 1) >= mean(first, steps)

    for grows in (lambda past: min(past, window), lambda past: past + 100 * (past >= window)):
        found = mean(first, steps, grows, {window})
        assert mean(first + 1, steps, grows, {window}) >= found * (1 - 1e-12)
        assert mean(first, steps + 1, grows, {window}) >= found * (1 - 1e-12)
        walked = sum(grows(past) for past in range(first, first + steps)) / steps
        assert found == pytest.approx(walked)


@pytest.mark.parametrize("engine", engines.names())
def test_what_an_engine_runs_is_an_operator(engine):
    e = engines.get(engine)
    for capability in (7.5, 8.0, 9.0, 10.0):
        assert set(e.runs_as(capability)) <= set(ops.names())
    assert set(e.KERNELS) <= set(ops.names())
    assert all(n >= 1 for n in e.KERNELS.values())


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"model": "gpt2"}, "gpt2: native cannot run GPT2LMHeadModel: it runs LlamaForCausalLM, "),
        ({"model": "llama-3.1-8b", "dtype": "fp8"}, "cannot run fp8 weights: choose --dtype bf16 or fp16 or fp32"),
        ({"model": "qwen3-32b-fp8"}, "qwen3-32b-fp8: native cannot run fp8 weights"),
        ({"model": "llama-3.1-8b", "tp": 2}, "runs on 1 GPU, not on 2"),
        ({"model": "llama-3.1-8b", "pp": 2}, "runs on 1 GPU, not on 2"),
    ],
)
def test_what_an_engine_cannot_run_is_refused(asked, why):
    with pytest.raises(ChipError, match=re.escape(why)):
        request.answer({"engine": "native", **asked})


def test_a_setting_with_a_key_of_its_own_is_the_engines():
    asked = {"model": "qwen3-0.6b", "engine": "hf-eager", "prompt": 4096, "output": 2}
    flash, plain = (request.answer({**asked, **more}) for more in ({"sdpa": "flash"}, {}))
    assert flash == request.answer({**asked, "engine_settings": {"sdpa": "flash"}})
    assert flash["ttft_ms"] != plain["ttft_ms"]
    with pytest.raises(ChipError, match="engine setting 'sdpa' is not known"):
        request.answer({**asked, "engine": "vllm", "sdpa": "flash"})
    with pytest.raises(ChipError, match="no setting of this engine"):
        request.answer({**asked, "engine": "hf-graph", "sdpa": "flash"})
