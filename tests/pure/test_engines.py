"""Engines: schedules that compute every token once, and rewrites that keep the work they fuse."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chip import engines, hardware, ops
from chip.dtypes import precision
from chip.engines import chunked, context, fuse, hf_graph, native, vllm
from chip.engines.vllm import schedule
from chip.models import library
from chip.models.lower import body, lower
from chip.ops.add_rms_norm import AddRmsNorm
from chip.ops.attention import Attention
from chip.ops.kv_append import KvAppend
from chip.ops.kv_roll import KvRoll, SlidingAppend
from chip.ops.linear import Linear
from chip.ops.masked_attention import MaskedAttention, SlidingAttention
from chip.ops.mla import Mla
from chip.ops.rms_norm import RmsNorm
from chip.ops.rope import Rope
from chip.predict.estimator import estimator_of
from chip.predict.phase import Phase, lines_of
from chip.predict.steps import StepModel
from chip.types import ChipError, Scenario, Seq, Step

LARGE, SMALL = 80 * 2**30, 24 * 2**30
BF16 = precision("bf16")


def test_engines_are_found_by_listing():
    assert engines.names() == ("hf-eager", "hf-graph", "native", "vllm")
    assert tuple(engines.get(n).NAME for n in engines.names()) == engines.names()
    assert all(engines.get(n).TITLE for n in engines.names())
    with pytest.raises(ChipError, match="no engine 'vlm'; did you mean vllm"):
        engines.get("vlm")
    for shared in ("fuse", "hf", "playing"):
        with pytest.raises(ChipError, match=f"no engine '{shared}'"):
            engines.get(shared)


def test_attention_over_pages_is_the_kernel_of_the_gpu():
    runs_as = engines.get("vllm").runs_as
    assert {c: runs_as(c, {})["attention"] for c in (0.0, 8.0, 8.9, 9.0, 10.0)} == {
        0.0: "fa2|flash", 8.0: "fa2|flash", 8.9: "fa2|flash", 9.0: "fa3", 10.0: "flashinfer|fa2|flash"
    }  # fmt: skip
    eager = engines.get("hf-eager").runs_as
    assert [eager(9.0, {"sdpa": asked})["attention"] for asked in ("", "flash", "cudnn")] == ["cudnn", "flash", "cudnn"]
    with pytest.raises(ChipError, match="--sdpa math: hf-eager is predicted with cudnn or flash, no other"):
        eager(9.0, {"sdpa": "math"})


# --- the growing context


@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_context_points_stand_for_all_steps(first, steps):
    points = context.decode_contexts(first, steps)
    total = 0.0
    for _, weight in points:
        total += weight
    assert total == 1  # exactly, in this order
    assert all(first <= past < first + steps for past, _ in points)
    mean = sum(past * weight for past, weight in points)
    assert mean == pytest.approx(first + (steps - 1) / 2, abs=0.5)


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_context_points_only_move_up(first, steps):
    def mean(first, steps):
        return sum(past * weight for past, weight in context.decode_contexts(first, steps))

    assert mean(first + 1, steps) > mean(first, steps)
    assert mean(first, steps + 1) >= mean(first, steps)


# --- HF


def test_hf_eager_is_one_prefill_and_growing_decodes():
    e, s = engines.get("hf-eager"), Scenario(4, 100, 11)
    assert e.prefill(s, LARGE) == ((Step((Seq(100, 0, 4),), prompts=True), 1.0),)
    assert not e.prefill(Scenario(4, 1, 11), LARGE)[0][0].decode  # nothing is joined yet
    steps = e.decode(s, LARGE)
    assert [step.seqs for step, _ in steps] == [(Seq(1, past, 4),) for past in (100, 102, 105, 107, 109)]
    assert [weight * 12 for _, weight in steps] == pytest.approx([1, 4, 2, 4, 1])
    assert not any(step.graph for step, _ in steps)


@given(st.integers(1, 5000), st.integers(1, 300))
def test_hf_graph_attends_over_its_whole_cache(prompt, output):
    e, s = engines.get("hf-graph"), Scenario(3, prompt, output)
    cache = prompt + max(output, 64)
    assert hf_graph.cache_tokens(s) == cache
    (first, _), (step, _) = e.prefill(s, LARGE)[0], e.decode(s, LARGE)[0]
    attention = MaskedAttention(1, 4, 2, 16, 1, 1)
    assert [attention.over(q).kv_len for q in (*first.seqs, *step.seqs)] == [cache, cache]
    assert first.graph
    assert step.graph


def test_hf_graph_masks_instead_of_leaving_out():
    program = engines.get("hf-graph").rewrite(body(library.find("mistral-7b-v0.1"), 1, BF16, 1), True)
    attention = [c.op for b in program.blocks for c in b.calls if isinstance(c.op, (Attention, MaskedAttention))]
    assert [type(op) for op in attention] == [SlidingAttention]
    cost = attention[0].over(Seq(1, 2000, 1, 3000)).cost()
    assert cost.flops == 2 * 32 * 3000 * 256, "no causality: empty slots too"
    assert cost.write_bytes > 2 * 3000 * 32 * 256, "8 heads of the cache are copied for 32 of the queries"
    assert attention[0].over(Seq(1, 9000, 1, 9064)).kv_len == 4096, "a sliding cache has no more slots than its window"


@pytest.mark.parametrize(
    ("prompt", "output", "shares"),
    [
        (100, 9, {"kv_append": 1.0}),
        (4090, 9, {"kv_append": 6 / 8, "kv_roll": 2 / 8}),
        (4095, 2, {"kv_append": 1.0}),
        (4096, 2, {"kv_roll": 1.0}),
        (5000, 9, {"kv_roll": 1.0}),
    ],
)
def test_hf_graph_rolls_a_window_that_is_full(prompt, output, shares):
    e, s = engines.get("hf-graph"), Scenario(3, prompt, output)
    program = e.rewrite(body(library.find("mistral-7b-v0.1"), 1, BF16, 1), True)
    update = next(c.op for b in program.blocks for c in b.calls if isinstance(c.op, SlidingAppend))
    found = Counter()
    for step, weight in e.decode(s, LARGE, windows={4096}):
        found[update.over(step.seqs[0]).kind] += weight
    assert found == pytest.approx(shares)
    assert update.over(Seq(1, 4096, 3)) == KvRoll(3 * 4096, 2 * 8 * 128)
    assert update.over(Seq(5000, 0, 3)) == KvAppend(3 * 4096, 2 * 8 * 128), "of a prompt the window is kept"


@given(st.integers(1, 3000), st.integers(0, 3000))
def test_hf_eager_joins_each_new_token_to_its_cache(new, past):
    """Only in a decode step; a prompt attends as it is."""
    one = body(library.find("llama-3.1-8b"), 1, BF16, 1)
    found = {}
    for decode in (True, False):
        program = engines.get("hf-eager").rewrite(one, decode)
        found[decode] = next(c.op for b in program.blocks for c in b.calls if isinstance(c.op, Attention))
    assert [found[d].kind for d in (True, False)] == ["growing_attention", "attention"]
    grown, plain = (found[d].over(Seq(new, past, 3)).cost() for d in (True, False))
    copied = 3 * (new + past) * 8 * 2 * 128 * 2
    assert grown == (plain.flops, plain.read_bytes + copied, plain.write_bytes + copied)


@pytest.mark.parametrize("engine", ["hf-eager", "hf-graph"])
def test_hf_spells_norms_and_rotations_out(engine):
    """As many calls of each as before, in HF's kernels; the angles once a step."""
    before = body(library.find("llama-3.1-8b"), 7, BF16, 1)
    after = engines.get(engine).rewrite(before, False)

    def counts(program):
        return Counter(c.op.kind for b in program.blocks for c in b.calls for _ in range(b.repeat))

    old, new = counts(before), counts(after)
    assert new["rms_norm_composed"] == old["rms_norm"] == 65
    assert new["rope_composed"] == old["rope"] == 32
    assert new["rotary_table"] == 1
    assert not {"rms_norm", "rope"} & set(new)
    table = next(c.op for b in after.blocks for c in b.calls if c.op.kind == "rotary_table")
    assert (table.rows, table.cols) == (7, 128)
    unrotated = engines.get(engine).rewrite(body(library.find("bloom-560m"), 7, BF16, 1), False)
    assert "rotary_table" not in counts(unrotated)


@pytest.mark.parametrize("model", ["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_experts_are_what_each_engine_launches(model):
    """HF sorts, gathers and restores beside the same products; vLLM's kernels are fewer than that, more than one."""
    hf, vllm = engines.get("hf-eager"), engines.get("vllm")
    for decode in (True, False):
        decomposed, fused = (calls_of(model, e.NAME, decode) for e in (hf, vllm))
        assert (decomposed["experts"].kind, decomposed["router"].kind) == (
            "moe_experts_composed",
            "moe_router_composed",
        )
        assert (fused["experts"].kind, fused["router"].kind) == ("moe_experts", "moe_router")
        assert decomposed["experts"].counted_flops == fused["experts"].counted_flops
        assert decomposed["experts"].cost().bytes > fused["experts"].cost().bytes
        for role in ("experts", "router"):
            kinds = fused[role].kind, decomposed[role].kind
            assert vllm.runs_as(9.0, {})[kinds[0]] == "vllm"
            assert hf.runs_as(9.0, {})[kinds[1]] == "torch"
            assert 1 < vllm.KERNELS[kinds[0]] < decomposed[role].KERNELS


def test_a_gated_shared_expert_is_weighed():
    calls = calls_of("qwen1.5-moe-a2.7b", "hf-eager", False)
    roles = list(calls)
    weighed = ["shared_down_proj", "shared_gate", "shared_sigmoid", "shared_scale", "shared_add"]
    assert [r for r in roles if r in weighed] == weighed
    assert (calls["shared_sigmoid"].cols, calls["shared_scale"].cols) == (1, 2048)
    assert "shared_scale" not in calls_of("deepseek-v2-lite", "hf-eager", False)


def calls_of(model, engine, decode):
    d = library.find(model)
    return {
        c.role: c.op
        for b in engines.get(engine).rewrite(body(d, 7, BF16, 1), decode, d.architecture).blocks
        for c in b.calls
    }


@pytest.mark.parametrize(
    ("model", "kind"),
    [("bloom-560m", "alibi_attention"), ("gpt-j-6b", "float_attention"), ("gpt-oss-20b", "sink_attention")],
)
def test_families_without_sdpa_spell_out_their_attention(model, kind):
    for engine in ("hf-eager", "hf-graph"):
        for decode in (True, False):
            calls = calls_of(model, engine, decode)
            assert calls["attention"].kind == kind
            grows = engine == "hf-eager" and decode
            assert calls["kv_append"].kind == ("kv_join" if grows else "kv_append")
    assert calls_of(model, "vllm", True)["attention"].kind == "attention"
    op = calls_of(model, "hf-eager", True)["kv_append"].over(Seq(1, 99, 3))
    assert op.cost().write_bytes == 3 * op.keys * op.kv_heads * 2 * op.head_dim * 2


def test_a_window_spares_decomposed_out_attention_what_has_left_the_cache():
    d = library.find("gpt-oss-20b")
    program = engines.get("hf-eager").rewrite(body(d, 1, BF16, 1), True, d.architecture)
    kinds = {c.op.window: c.op for b in program.blocks for c in b.calls if c.role == "attention"}
    assert {w: op.over(Seq(1, 999)).keys for w, op in kinds.items()} == {0: 1000, 128: 128}
    assert {w: op.over(Seq(1000, 0)).keys for w, op in kinds.items()} == {0: 1000, 128: 1000}, "a prompt is masked"
    static = {w: op.over(Seq(1, 999, 1, 1064)).keys for w, op in kinds.items()}
    assert static == {0: 1064, 128: 128}, "all slots of a cache of fixed size"


@pytest.mark.parametrize("engine", ["hf-eager", "hf-graph"])
def test_merged_gates_and_joined_heads(engine):
    phi = calls_of("phi-3-mini", engine, False)
    assert (phi["act"].kind, phi["act"].cols) == ("silu_mul_halves", 8192)
    assert (phi["rope_join"].kind, phi["rope_join"].cols) == ("rope_join", 2 * 32 * 96)
    part = calls_of("pythia-1.4b", engine, False)  # a quarter of each head of 128 is rotated
    assert (part["rope"].head_dim, part["rope_join"].cols) == (32, 2 * 16 * 128)
    llama = calls_of("llama-3.1-8b", engine, False)
    assert llama["act"].kind == "silu_mul"
    assert "rope_join" not in llama


@pytest.mark.parametrize("engine", ["hf-eager", "hf-graph"])
def test_gemma_adds_one_to_the_weight_of_every_norm(engine):
    program = engines.get(engine).rewrite(body(library.find("gemma-3-1b"), 7, BF16, 1), False, "Gemma3ForCausalLM")
    norms, weights = (
        sum(b.repeat for b in program.blocks for c in b.calls if c.op.kind == kind)
        for kind in ("rms_norm_composed", "norm_weight")
    )
    assert weights == norms >= 6 * 26
    assert "norm_weight" not in calls_of("qwen3-14b", engine, False)


def test_gelu_is_many_kernels_in_hf_and_one_in_vllm():
    kinds = {
        (m, e): calls_of(m, e, True)["act"].kind
        for m in ("bloom-560m", "gpt2", "falcon-7b")
        for e in ("hf-eager", "vllm")
    }
    assert {m: k for (m, e), k in kinds.items() if e == "hf-eager"} == {
        "bloom-560m": "gelu_fast", "gpt2": "gelu_new", "falcon-7b": "gelu"
    }  # fmt: skip
    assert {k for (_, e), k in kinds.items() if e == "vllm"} == {"gelu"}


@pytest.mark.parametrize("engine", engines.names())
def test_what_an_engine_runs_is_an_operator(engine):
    e = engines.get(engine)
    for capability in (7.5, 8.0, 9.0, 10.0):
        assert set(e.runs_as(capability, {})) <= set(ops.names())
    assert set(e.KERNELS) <= set(ops.names())
    assert all(n >= 1 for n in e.KERNELS.values())


# --- vLLM: schedule


@given(st.integers(1, 400), st.integers(2, 3000), st.integers(400, 5000), st.integers(1, 2))
def test_every_prompt_token_is_computed_once(batch, prompt, budget, output):
    """Follow the scheduler's sequences as a KV cache would: no gap, no overlap, no step over its budget."""
    steps = chunked._chunks(Scenario(batch, prompt, output), budget)
    half_done, finished = None, 0
    for number, seqs in enumerate(steps):
        assert sum(s.new * s.count for s in seqs) <= budget
        assert all(s.new > 0 and s.count > 0 for s in seqs)
        if number < len(steps) - 1:
            assert sum(s.new * s.count for s in seqs) == budget
        done_before = finished
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
        assert decoding == (done_before if output > 1 else 0)
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
    assert len(steps) <= 2 * chunked.EXACT_STEPS + 1
    assert all(0 < step.tokens <= schedule.step_tokens(memory) for step, _ in steps)
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


def test_requests_beyond_what_runs_at_once_wait_in_waves():
    """2.5 waves: two whole ones prefill and decode to their end before the last prefills."""
    steps = vllm.prefill(Scenario(640, 16, 11), SMALL)
    assert [(step.seqs, weight) for step, weight in (steps[0], steps[-1])] == [
        ((Seq(16, 0, 256),), 2),
        ((Seq(16, 0, 128),), 1),
    ]
    decodes = [(step.seqs[0], weight) for step, weight in steps[1:-1]]
    assert {(s.new, s.count) for s, _ in decodes} == {(1, 256)}
    assert sum(weight for _, weight in decodes) == pytest.approx(2 * 10)
    assert sum(s.past * weight for s, weight in decodes) / 20 == pytest.approx(16 + 4.5, abs=0.5)
    assert vllm.decode(Scenario(640, 16, 2), SMALL) == ((Step((Seq(1, 16, 256),), 0, True), 1.0),)
    assert vllm.decode(Scenario(640, 16, 2), LARGE) == ((Step((Seq(1, 16, 640),)), 1.0),)


@given(st.integers(1, 600))
def test_graphs_pad_to_the_next_size(n):
    padded = schedule.padded(n)
    assert padded >= n
    assert padded == n if n > 512 or n in (1, 2, 4, 8, 248, 256, 272, 512) else padded in schedule.GRAPH_TOKENS
    assert schedule.padded(n + 1) >= padded
    assert padded - n < (2 if n <= 4 else 8 if n <= 256 else 16)


def test_a_padded_step_has_the_rows_of_its_requests():
    ((step, _),) = vllm.decode(Scenario(9, 100, 2), LARGE)
    assert (step.tokens, step.rows, step.graph) == (16, 9, True)
    ((step, _),) = vllm.decode(Scenario(513, 100, 2), LARGE)
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
    c = StepModel(library.find(model), BF16, 1, "vllm", estimator_of(hardware.find("a100")))
    s = Scenario(batch, prompt, output)
    budget = schedule.step_tokens(LARGE)
    assert batch * prompt > chunked.EXACT_STEPS * budget
    steps = tuple((schedule._step(seqs), 1.0) for seqs in chunked._chunks(s, budget))
    walked = Phase(lines_of(c.timed(steps, True)), 0, 0)
    integrated = c.prefill(s, LARGE)
    assert integrated.seconds == pytest.approx(walked.seconds, rel=0.02)
    assert integrated.matmul_flops == pytest.approx(walked.matmul_flops, rel=0.02)


# --- vLLM: rewrite

DENSE = ["llama-3.1-8b", "qwen2.5-7b", "qwen3-8b", "gemma-2-9b", "mixtral-8x7b", "granite-3.1-8b", "opt-125m"]


def flat(program):
    return [(b.repeat, c) for b in program.blocks for c in b.calls]


@pytest.mark.parametrize("model", [*DENSE, "olmo-2-7b", "gpt-j-6b", "falcon-40b", "phi-3-mini", "qwen1.5-moe-a2.7b"])
@pytest.mark.parametrize("decode", [True, False])
def test_fusing_keeps_the_flops_and_moves_less(model, decode):
    canonical = lower(library.find(model), Step((Seq(1 if decode else 9, 20, 3),)), BF16)
    fused = engines.get("vllm").rewrite(canonical, decode)
    assert fused.counted_flops == canonical.counted_flops
    names = {c.role for _, c in flat(fused)}
    # norms of queries and keys go into rotations, their few operations uncounted; two rotations read the angles twice
    gone = sum(
        n * c.op.cost().flops for n, c in flat(canonical) if c.role in ("q_norm", "k_norm") and c.role not in names
    )
    twice = sum(n * 2 * c.op.rows * c.op.head_dim for n, c in flat(fused) if c.role == "k_rope")
    if model == "gpt-j-6b":  # the two additions of a parallel layer are one pass before the next norm
        gone = sum(n * c.op.cost().flops for n, c in flat(canonical) if c.role == "attn_add")
    assert fused.cost().flops == canonical.cost().flops - gone
    assert fused.cost().bytes <= canonical.cost().bytes + twice


def test_projections_over_one_input_are_merged():
    calls = {
        c.role: c.op for _, c in flat(engines.get("vllm").rewrite(body(library.find("qwen2.5-7b"), 5, BF16, 1), True))
    }
    assert calls["qkv_proj"] == Linear(5, (28 + 2 * 4) * 128, 3584, "bf16", "bf16", True)
    assert calls["gate_up_proj"] == Linear(5, 2 * 18944, 3584, "bf16", "bf16")
    assert not {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"} & set(calls)


def test_a_rule_that_lacks_a_part_does_nothing():
    calls = [c for _, c in flat(body(library.find("opt-125m"), 1, BF16, 1))]
    assert fuse.merge_linears(("gate_proj", "up_proj"), "gate_up_proj")(calls) == calls


@pytest.mark.parametrize("model", DENSE)
def test_each_addition_goes_into_a_norm(model):
    canonical = body(library.find(model), 4, BF16, 1)
    fused = engines.get("vllm").rewrite(canonical, True)
    count = {}
    for name, program in (("before", canonical), ("after", fused)):
        for n, c in flat(program):
            if c.op.kind in ("add", "rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm"):
                count[name, c.op.kind] = count.get((name, c.op.kind), 0) + n
    layers = library.find(model).layer_count
    norms = {k: v for (when, k), v in count.items() if when == "before" and k.endswith("norm")}
    ((kind, before),) = norms.items()
    before -= sum(n for n, c in flat(canonical) if c.role in ("q_norm", "k_norm"))  # part of the rotation
    assert count["after", f"add_{kind}"] == 2 * layers
    assert count.get(("after", kind), 0) == before - 2 * layers
    assert count.get(("after", "add"), 0) == count["before", "add"] - 2 * layers


def test_norms_of_heads_go_into_rotations_and_these_are_apart():
    calls = {
        c.role: c.op for _, c in flat(engines.get("vllm").rewrite(body(library.find("qwen3-8b"), 5, BF16, 1), True))
    }
    assert not {"q_norm", "k_norm", "rope"} & set(calls)
    assert calls["q_rope"] == Rope(5, 32, 128, "bf16")
    assert calls["k_rope"] == Rope(5, 8, 128, "bf16")


def test_rotations_of_as_many_queries_as_keys_are_one():
    calls = {
        c.role: c.op for _, c in flat(engines.get("vllm").rewrite(body(library.find("phi-3-mini"), 5, BF16, 1), True))
    }
    assert calls["rope"] == Rope(5, 64, 96, "bf16")


def test_norms_of_a_latent_stay():
    calls = {c.role for _, c in flat(engines.get("vllm").rewrite(body(library.find("deepseek-v3"), 5, BF16, 1), True))}
    assert {"q_norm", "kv_norm", "rope"} <= calls


def test_both_additions_of_a_parallel_layer_go_into_the_next_norm():
    roles = {c.role: c.op.kind for _, c in flat(calls_by("gpt-j-6b"))}
    assert roles["attn_norm"] == "add_layer_norm"
    assert not {"attn_add", "mlp_add"} & set(roles)
    post = {c.role: c.op.kind for _, c in flat(calls_by("olmo-2-7b"))}  # its norms come after: none is fused
    assert "add_rms_norm" not in post.values()


def calls_by(model):
    return engines.get("vllm").rewrite(body(library.find(model), 4, BF16, 1), True)


def test_fused_norm_has_the_shape_of_the_norm():
    calls = {
        c.role: c.op for _, c in flat(engines.get("vllm").rewrite(body(library.find("llama-3.1-8b"), 5, BF16, 1), True))
    }
    assert calls["attn_norm"] == calls["mlp_norm"] == AddRmsNorm(5, 4096)
    assert calls["final_norm"] == RmsNorm(5, 4096)


def test_latent_attention_is_absorbed_in_decode_only():
    d = library.find("deepseek-v3")  # 128 heads, latent 512, 128 + 64 wide keys, values of 128
    one = {c.role: c.op for _, c in flat(engines.get("vllm").rewrite(body(d, 3, BF16, 1), True))}
    assert "kv_up" not in one
    assert one["attention"] == Mla(1, 128, 512, 64, 1, 1)
    assert one["q_absorb"].cost().flops == 2 * 128 * 3 * 512 * 128
    assert one["v_absorb"].cost().flops == 2 * 128 * 3 * 128 * 512
    assert one["kv_append"].cost().write_bytes == 3 * 576 * 2
    many = {c.role: c.op for _, c in flat(engines.get("vllm").rewrite(body(d, 3, BF16, 1), False))}
    assert isinstance(many["attention"], Attention)
    assert "kv_up" in many


def test_absorbing_reads_the_same_weights():
    """Absorbed, the up-projection's matrix is read by two batched products instead of one dense layer."""
    d = library.find("deepseek-v3")
    up = next(c.op for _, c in flat(body(d, 1, BF16, 1)) if c.role == "kv_up")
    absorbed = {c.role: c.op for _, c in flat(engines.get("vllm").rewrite(body(d, 1, BF16, 1), True))}
    weights = sum(absorbed[r].batch * absorbed[r].n * absorbed[r].k for r in ("q_absorb", "v_absorb"))
    assert weights == up.n * up.k


def test_hf_eager_meets_a_prompt_that_outgrows_a_window_under_a_mask():
    """torch's fused attention knows no window. Gemma-3 at 8 x 2048 took 108 ms; without the mask 86 were predicted."""
    d = library.find("gemma-3-1b")
    program = engines.get("hf-eager").rewrite(body(d, 1, precision("bf16"), 1), False, d.architecture)
    by_window = {c.op.window: c.op for b in program.blocks for c in b.calls if c.role == "attention"}
    assert set(by_window) == {0, 512}
    long, short, one = Seq(2048, 0, 8), Seq(512, 0, 8), Seq(1, 2047, 8)
    assert by_window[512].over(long) == MaskedAttention(8, 4, 1, 256, 2048, 2048)
    assert not isinstance(by_window[512].over(short), MaskedAttention)
    assert not isinstance(by_window[512].over(one), MaskedAttention)
    assert not isinstance(by_window[0].over(long), MaskedAttention)


def test_requests_that_have_their_first_token_take_room_from_prompts_in_native_too():
    """Two steps would hold 8 x 2048 tokens; four that decode along leave four tokens of the last prompt to a third."""
    steps = [step for step, _ in native.prefill(Scenario(8, 2048, 64), 140e9)]
    assert [[(s.new, s.past, s.count) for s in step.seqs] for step in steps] == [
        [(2048, 0, 4)],
        [(1, 2048, 4), (2048, 0, 3), (2044, 0, 1)],
        [(1, 2048, 7), (4, 2044, 1)],
    ]
    assert [len(native.prefill(Scenario(b, n, 1), 140e9)) for b, n in ((8, 512), (8, 2048), (1, 8192))] == [1, 2, 1]
