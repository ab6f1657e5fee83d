"""What transformers launches: the HF engines' schedules, caches, composed norms, attention and experts."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import chip
from chip import engines
from chip.decoders import describe, library
from chip.decoders.lower import body
from chip.dtypes import precision
from chip.engines import hf_graph
from chip.ops.attention import Attention
from chip.ops.masked_attention import MaskedAttention, SlidingAttention
from chip.ops.moves import KvAppend, KvRoll, SlidingAppend
from chip.predictor.schedule import attending
from chip.types import ChipError, Scenario, Seq, Step

LARGE, SMALL = 80 * 2**30, 24 * 2**30
BF16 = precision("bf16")


def test_hf_eager_is_one_prefill_and_growing_decodes():
    e, s = engines.get("hf-eager"), Scenario(4, 100, 11)
    assert e.prefill(s, LARGE) == ((Step((Seq(100, 0, 4),), prompts=True), 1.0),)
    assert not e.prefill(Scenario(4, 1, 11), LARGE)[0][0].decode  # nothing is joined yet
    step = e.decode(s, LARGE)
    assert (step.seqs, step.steps, step.graph) == ((Seq(1, 100, 4),), 10, False)
    seqs, weights = zip(*attending(step))
    assert seqs == (Seq(1, 105, 4),), "a few steps are timed at one context"
    assert weights == (1.0,)


@given(st.integers(1, 5000), st.integers(1, 300))
def test_hf_graph_attends_over_its_whole_cache(prompt, output):
    e, s = engines.get("hf-graph"), Scenario(3, prompt, output)
    cache = prompt + max(output, 64)
    assert hf_graph.cache_tokens(s) == cache
    (first, _), step = e.prefill(s, LARGE)[0], e.decode(s, LARGE)
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
    for seq, weight in attending(e.decode(s, LARGE), {4096}):
        found[update.over(seq).kind] += weight
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
        router = "grouped_router" if model.startswith("deepseek") else "moe_router"
        assert (fused["experts"].kind, fused["router"].kind) == ("moe_experts", router)
        assert decomposed["experts"].counted_flops == fused["experts"].counted_flops
        assert decomposed["experts"].cost().bytes > fused["experts"].cost().bytes
        for role in ("experts", "router"):
            kinds = fused[role].kind, decomposed[role].kind
            assert vllm.runs_as(9.0)[kinds[0]] == "vllm"
            assert hf.runs_as(9.0)[kinds[1]] == "torch"
            if kinds[0] in vllm.KERNELS:  # groups of experts are chosen first by kernels of their own
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


def test_falcon_attends_over_a_broadcast_key_head_and_copies_grouped_ones():
    for decode in (True, False):
        one = calls_of("falcon-7b", "hf-eager", decode)
        assert (one["attention"].kind, one["attention"].kv_heads) == ("broadcast_attention", 1)
        assert (one["kv_index"].rows, one["kv_index"].cols) == (7, 64), "of one head"
        grouped = calls_of("falcon-40b", "hf-eager", decode)["attention"]
        assert grouped.kind == ("growing_attention" if decode else "attention")
        assert grouped.kv_heads == grouped.heads == 128
    assert calls_of("falcon-7b", "vllm", True)["attention"].kv_heads == 1


@pytest.mark.parametrize(("model", "copies"), [("falcon-7b", 1), ("falcon-40b", 16), ("llama-3.1-8b", 1)])
def test_the_cache_of_falcon_holds_keys_of_groups_once_for_every_head(model, copies):
    a_token = [chip.predict(model, gpu="h200", engine=e).memory["kv_bytes_per_token"] for e in ("hf-eager", "vllm")]
    assert a_token[0] == copies * a_token[1]


def test_falcon_without_shared_keys_takes_nothing_by_an_index():
    config = {"architectures": ["FalconForCausalLM"], "model_type": "falcon", "vocab_size": 512, "hidden_size": 64,
              "num_hidden_layers": 2, "num_attention_heads": 4, "multi_query": False}  # fmt: skip
    d = describe(config, "it", "it.json")
    roles = {c.role for b in engines.get("hf-eager").rewrite(body(d, 7, BF16, 1), True, d.architecture).blocks
             for c in b.calls}  # fmt: skip
    assert "qkv_proj" in roles
    assert "kv_index" not in roles


def test_gpt_j_looks_its_angles_up_in_each_layer():
    d = library.find("gpt-j-6b")
    layer = engines.get("hf-eager").rewrite(body(d, 7, BF16, 1), True, d.architecture).blocks[1]
    assert [c.op.cols for c in layer.calls if c.role == "position"] == [64] * 8


@pytest.mark.parametrize("model", ["bloom-560m", "falcon-7b", "gpt-j-6b", "gpt-oss-20b"])
def test_families_that_no_graph_can_hold_are_refused(model):
    with pytest.raises(ChipError, match=r"hf-graph cannot run .*transformers 5\.17.*choose another --engine"):
        chip.predict(model, gpu="h200", engine="hf-graph")
    assert chip.predict(model, gpu="h200", engine="hf-eager").tpot_s > 0


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
@pytest.mark.parametrize(
    ("model", "kind", "count"),
    [
        ("gemma-3-1b", "rms_norm_plus_one", 6 * 26 + 1),  # of a layer, of its queries and of its keys
        ("olmo-2-7b", "rms_norm_fp32", 4 * 32 + 1),
        ("command-r", "layer_norm_composed", 40 + 1),
        ("qwen3-14b", "rms_norm_composed", 4 * 40 + 1),
    ],
)
def test_families_have_norms_of_their_own(engine, model, kind, count):
    decoder = library.find(model)
    program = engines.get(engine).rewrite(body(decoder, 7, BF16, 1), False, decoder.architecture)
    calls = [(b.repeat, c) for b in program.blocks for c in b.calls if "norm" in c.op.kind]
    assert {c.op.kind for _, c in calls} == {kind}
    assert sum(repeat for repeat, _ in calls) == count


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
