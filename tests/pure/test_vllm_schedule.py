"""vLLM's schedule: every token is computed once, within the budget of a step, padded to the sizes of graphs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chip import engines
from chip.decoders import library
from chip.dtypes import precision
from chip.engines import chunked
from chip.engines.native import MOST_REQUESTS
from chip.engines.vllm.options import defaults
from chip.hardware import gpus
from chip.predictor import request
from chip.predictor.estimator import estimator_of
from chip.predictor.phase import Phase
from chip.predictor.steps import step_model
from chip.types import Scenario, Seq, Step

vllm, native = engines.get("vllm"), engines.get("native")
LARGE, SMALL = defaults(80 * 2**30), defaults(24 * 2**30)
BF16 = precision("bf16")


@given(st.integers(1, 400), st.integers(2, 3000), st.integers(400, 5000), st.integers(1, 4))
def test_every_prompt_token_is_computed_once(batch, prompt, budget, output):
    """Follow the scheduler's sequences as a KV cache would: no gap, no overlap, no step over its budget."""
    steps, *_ = chunked._chunks(Scenario(batch, prompt, output), budget, 10**9)
    half_done, finished, after = None, 0, [0] * output  # requests with their first token, after each step
    for number, seqs in enumerate(steps):
        assert sum(s.new * s.count for s in seqs) <= budget
        assert all(s.new > 0 and s.count > 0 for s in seqs)
        if number < len(steps) - 1:
            assert sum(s.new * s.count for s in seqs) == budget
        done_before = finished - after[-output]  # those before have all their tokens
        for s in seqs:
            if s.past == prompt:  # a request that has its first token decodes along
                assert (s.new, s.count) == (1, done_before)
            elif s.past:
                assert (s.past, s.count) == (half_done, 1)
                half_done = s.past + s.new
            elif s.new == prompt:
                finished += s.count
            else:
                assert half_done is None
                half_done = s.new
            if half_done == prompt:
                half_done, finished = None, finished + 1
        decoding = sum(s.count for s in seqs if s.past == prompt)
        assert decoding == done_before
        after.append(finished)
    assert (half_done, finished) == (None, batch)


def tokens(steps, prompt):
    """(prompt tokens, decode tokens) of a weighted schedule."""
    seqs = [(s, weight) for step, weight in steps for s in step.seqs]
    decode = sum(s.count * w for s, w in seqs if s.new == 1 and s.past >= prompt)
    return sum(s.new * s.count * w for s, w in seqs) - decode, decode


@given(st.integers(1, 3000), st.integers(2, 20_000), st.integers(1, 50), st.sampled_from([LARGE, SMALL]))
def test_a_schedule_of_any_length_computes_its_prompts(batch, prompt, output, memory):
    s = Scenario(batch, prompt, output)
    steps = vllm.prefill(s, memory)
    assert len(steps) <= 3 * (2 * chunked.MOST_WALKED + 18)  # three waves, prompts and decode steps in turn
    assert all(0 < step.tokens <= memory.max_num_batched_tokens for step, _ in steps)
    assert all(weight > 0 for _, weight in steps)
    assert tokens(steps, prompt)[0] == pytest.approx(batch * prompt, rel=1e-9)


def test_a_prompt_batch_within_the_budget_is_one_step():
    assert vllm.prefill(Scenario(8, 2048, 10), LARGE) == ((Step((Seq(2048, 0, 8),)), 1.0),)
    assert vllm.prefill(Scenario(1, 100, 1), LARGE) == ((Step((Seq(100, 0, 1),), 4, True), 1.0),)


def test_one_token_over_the_budget_is_a_second_step():
    steps = [step.seqs for step, _ in vllm.prefill(Scenario(3, 8192, 10), LARGE)]
    assert steps == [(Seq(8192, 0, 2),), (Seq(1, 8192, 2), Seq(8192, 0, 1))]
    steps = [step.seqs for step, _ in vllm.prefill(Scenario(3, 8192, 10), SMALL)]
    assert steps == [
        (Seq(8192, 0, 1),),
        (Seq(1, 8192, 1), Seq(8191, 0, 1)),
        (Seq(1, 8192, 1), Seq(1, 8191, 1), Seq(8190, 0, 1)),
        (Seq(1, 8192, 2), Seq(2, 8190, 1)),
    ]


def test_requests_beyond_what_runs_at_once_wait_for_those_that_end():
    """Prompts of one step end together; those of several steps one after another."""
    steps = vllm.prefill(Scenario(640, 16, 11), SMALL)
    assert [(step.seqs, weight) for step, weight in steps] == [
        ((Seq(16, 0, 256),), 1),
        ((Seq(1, 16, 256),), 10),
        ((Seq(16, 0, 256),), 1),
        ((Seq(1, 16, 256),), 10),
        ((Seq(16, 0, 128),), 1),
    ]
    steps = vllm.prefill(Scenario(600, 128, 11), SMALL)  # 64 prompts a step
    assert max(step.rows for step, _ in steps) == 256
    assert sum(len(step.seqs) > 1 and step.seqs[0].past > 130 for step, _ in steps) >= 4
    assert vllm.decode(Scenario(640, 16, 2), SMALL) == Step((Seq(1, 16, 256),), 0, True)
    assert vllm.decode(Scenario(640, 16, 2), LARGE) == Step((Seq(1, 16, 640),))


@given(st.integers(1, 600))
def test_graphs_pad_to_the_next_size(n):
    padded = chunked.padded(n, vllm.GRAPH_TOKENS)
    assert vllm.step((Seq(1, 5, n),)) == Step((Seq(1, 5, n),), padded - n, n <= 512)
    assert padded >= n
    assert padded == n if n > 512 or n in (1, 2, 4, 8, 248, 256, 272, 512) else padded in vllm.GRAPH_TOKENS
    assert chunked.padded(n + 1, vllm.GRAPH_TOKENS) >= padded
    assert padded - n < (2 if n <= 4 else 8 if n <= 256 else 16)


def test_a_padded_step_has_the_rows_of_its_requests():
    step = vllm.decode(Scenario(9, 100, 2), LARGE)
    assert (step.tokens, step.rows, step.graph) == (16, 9, True)
    step = vllm.decode(Scenario(513, 100, 2), LARGE)
    assert (step.tokens, step.rows, step.graph) == (513, 513, False)


@pytest.mark.parametrize(
    ("model", "batch", "prompt", "output"),
    [
        ("llama-3.1-8b", 300, 1500, 128),
        ("llama-3.1-8b", 1000, 600, 128),
        ("llama-3.1-8b", 1000, 600, 1),
        ("llama-3.1-8b", 40, 20_000, 128),
        ("llama-3.1-8b", 6, 100_000, 16),
        ("llama-3.1-8b", 2, 300_000, 1),
        ("mistral-7b-v0.1", 30, 30_000, 16),
        ("mixtral-8x7b", 200, 3000, 16),
    ],
)
def test_a_long_prefill_integrated_is_the_one_walked(model, batch, prompt, output, monkeypatch):
    monkeypatch.setattr(chunked, "EXACT_STEPS", 4)
    c = step_model(library.find(model), BF16, 1, "vllm", estimator_of(gpus.find("a100")), LARGE)
    s = Scenario(batch, prompt, output)
    budget = LARGE.max_num_batched_tokens
    assert batch * prompt > chunked.EXACT_STEPS * budget
    steps = tuple((vllm.step(seqs), 1.0) for seqs in chunked._chunks(s, budget, 10**9)[0])
    walked = Phase(c.lines(steps, True), 0, 0)
    integrated = c.prefill(s)
    assert integrated.seconds == pytest.approx(walked.seconds, rel=0.02)
    assert integrated.matmul_flops == pytest.approx(walked.matmul_flops, rel=0.02)


@pytest.mark.parametrize(
    ("engine", "batch", "prompt", "output"),
    [
        ("vllm", 32, 131_072, 64), ("vllm", 200, 12_000, 64), ("vllm", 1, 2_000_000, 2), ("native", 200, 3000, 64),
        ("native", 127, 8191, 1), ("native", 33, 16_384, 32),
    ],
)  # fmt: skip
def test_steps_after_the_walked_ones_take_as_long_as_if_all_were_walked(engine, batch, prompt, output, monkeypatch):
    c = step_model(library.find("llama-3.1-8b"), BF16, 1, engine, estimator_of(gpus.find("h200")), LARGE)
    s = Scenario(batch, prompt, output)
    integrated = c.prefill(s).seconds
    monkeypatch.setattr(chunked, "EXACT_STEPS", 10**9)
    assert integrated == pytest.approx(c.prefill(s).seconds, rel=0.01)


@pytest.mark.parametrize(
    ("gpu", "model", "dtype"), [("h100-nvl", "mistral-7b", "fp16"), ("rtx-pro-6000", "qwen3-4b", "bf16")]
)
def test_the_first_integrated_step_takes_no_time_back(gpu, model, dtype):
    """64 steps of 8192 tokens, and one token more in each of 32 prompts."""
    asked = {"model": model, "gpu": gpu, "engine": "native", "dtype": dtype, "batch": 32, "output": 32}
    walked, more = (request.answer({**asked, "prompt": n})["ttft_ms"] for n in (16_384, 16_385))
    assert more > walked * 0.999


def test_native_runs_so_many_requests_at_once():
    most = MOST_REQUESTS
    assert native.decode(Scenario(3 * most, 100, 8), None).rows == most
    steps = native.prefill(Scenario(most + 1, 100, 2), None)
    assert max(step.rows for step, _ in steps) <= most
    assert tokens(steps, 100)[0] == pytest.approx(100 * (most + 1), rel=1e-9)


def test_requests_that_have_their_first_token_take_room_from_prompts_in_native_too():
    """Two steps would hold 8 x 2048 tokens; four that decode along leave four tokens of the last prompt to a third."""
    steps = [step for step, _ in native.prefill(Scenario(8, 2048, 64), None)]
    assert [[(s.new, s.past, s.count) for s in step.seqs] for step in steps] == [
        [(2048, 0, 4)],
        [(1, 2048, 4), (2048, 0, 3), (2044, 0, 1)],
        [(1, 2048, 7), (4, 2044, 1)],
    ]
    assert [len(native.prefill(Scenario(b, n, 1), None)) for b, n in ((8, 512), (8, 2048), (1, 8192))] == [1, 2, 1]
