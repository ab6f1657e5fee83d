"""What the newest models' layers have beside attention and experts: costs by hand, caches, bad input."""

import copy

import pytest
from published_models import PUBLISHED

import chip
from chip.decoders import describe
from chip.decoders.lower import body, lower
from chip.dtypes import precision
from chip.ops.attention_variants import ChunkedAttention, pairs_in_chunks
from chip.types import ChipError, Seq, Step

BF16 = precision("bf16")


def model(name, **changes):
    raw = copy.deepcopy(PUBLISHED[name][1])
    inside = raw.get("text_config", raw)
    inside.update(changes)
    return describe(raw, name, name)


def ops_of(d, role):
    return [c.op for b in body(d, 1, BF16, 1).blocks for c in b.calls if c.role == role]


def test_a_chunk_hides_what_came_before_it():
    """Llama 4: token 8,193 sees itself alone, and a prompt of two chunks costs two triangles."""
    op = ChunkedAttention(1, 40, 8, 128, 1, 1, True, 8192)
    assert op.over(Seq(1, 8192, 4)).window == 1
    assert op.over(Seq(1, 8191, 4)).window == 0, "the last token of a chunk sees all of it"
    two = op.over(Seq(16384, 0, 1))
    assert two.cost().flops == pytest.approx(2 * op.over(Seq(8192, 0, 1)).cost().flops, rel=1e-3)
    assert pairs_in_chunks(3, 1, 2) == 2 + 1 + 2


SEE_LITTLE = (
    *("deepseek-ai/DeepSeek-V4-Flash", "meta-llama/Llama-4-Scout-17B-16E-Instruct", "MiniMaxAI/MiniMax-M3"),
    *("XiaomiMiMo/MiMo-V2-Flash", "google/gemma-3n-E4B"),
)


@pytest.mark.parametrize("name", SEE_LITTLE)
def test_a_long_context_hardly_slows_what_sees_little_of_it(name):
    short, long = (
        chip.predict(PUBLISHED[name][1], gpu="b200", tp=4, dtype="auto", prompt=prompt, output=16).tpot_s
        for prompt in (4096, 65536 - 16 if "3n" not in name else 32768 - 16)
    )
    assert long < 1.3 * short


def test_entries_of_a_compressed_cache_are_fewer_than_tokens():
    """DeepSeek V4 Flash at 64k: entries of 4 tokens, with indexed keys, or of 128; the latest tokens one by one."""
    d = model("deepseek-ai/DeepSeek-V4-Flash")
    ratios = [layer.attn.ratio for n, layer in d.layers for _ in range(n)]
    assert sorted(set(ratios)) == [0, 4, 128]
    tokens, entry = 65536, 584
    of_ratio = {0: 0, 4: tokens / 4 * (entry + 132), 128: tokens / 128 * entry}
    assert d.kv_bytes(tokens, BF16) == pytest.approx(sum(128 * entry + of_ratio[r] for r in ratios))
    assert d.state_bytes(BF16) == ratios.count(4) * (65536 + 16384) + ratios.count(128) * 524288


def test_layers_that_share_a_cache_store_nothing():
    """Gemma 3n: 20 of 35 layers have keys and values; the others read those of two of them."""
    d = model("google/gemma-3n-E4B")
    assert d.kv_bytes(1, BF16) == 20 * 2 * 2 * 256 * 2
    assert len(ops_of(d, "kv_append")) < len(ops_of(d, "attention"))
    assert {"per_layer", "lanes", "laurel", "per_layer_embed"} <= {
        c.role for b in body(d, 1, BF16, 1).blocks for c in b.calls
    }


def test_values_that_are_keys_have_no_matrix():
    d = model("google/gemma-4-26B-A4B")
    full, slides = (next(layer.attn for _, layer in d.layers if bool(layer.attn.window) == w) for w in (False, True))
    assert "v_proj" not in full.outputs
    assert "v_proj" in slides.outputs
    assert (full.head_dim, slides.head_dim, full.kv_values(True)) == (512, 256, 2 * 2 * 512)


def test_experts_that_do_nothing_cost_nothing():
    """LongCat: 12 of 768 experts are chosen, of which 256 hand their input on: 8 compute in the mean."""
    d = model("meituan-longcat/LongCat-Flash-Chat")
    assert {op.top_k for op in ops_of(d, "experts")} == {8}
    assert {op.experts for op in ops_of(d, "router")} == {768}
    assert d.active_params() / 1e9 == pytest.approx(27, rel=0.05), "as its makers say of the mean"


def test_heads_of_several_tokens_are_counted_apart():
    """DeepSeek V4 Flash: one more layer, and a projection; Gemma 4 has none."""
    d = model("deepseek-ai/DeepSeek-V4-Flash")
    assert d.drafts == 1
    assert 6.4e9 < d.draft_params() < 6.8e9, "beside 284 billion in 43 layers"
    assert model("google/gemma-4-26B-A4B").draft_params() == 0


def test_experts_behind_a_latent_read_a_narrower_input():
    d = model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4", quantization_config=None)
    assert {op.hidden for op in ops_of(d, "experts")} == {1024}
    assert d.active_params() / 1e9 == pytest.approx(12.7, rel=0.02)


def test_rounds_over_the_same_weights_cost_time_and_cache_but_no_memory():
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24, "vocab_size": 49152}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 16}
    raw = {"architectures": ["OuroForCausalLM"], "model_type": "ouro", **sizes, **heads}
    once, four = (describe({**raw, "total_ut_steps": n}, "ouro", "ouro") for n in (1, 4))
    assert four.params() == once.params()
    assert four.kv_bytes(1, BF16) == 4 * once.kv_bytes(1, BF16)

    def flops(d):
        return sum(c.op.cost().flops * b.repeat for b in lower(d, Step((Seq(1, 9, 1),)), BF16).blocks for c in b.calls)

    head = 2 * 2048 * 49152
    assert flops(four) - head == pytest.approx(4 * (flops(once) - head), rel=0.01)


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("deepseek-ai/DeepSeek-V4-Flash", {"compress_ratios": [4]}, "compress_ratios lists 1 layers"),
        ("deepseek-ai/DeepSeek-V4-Flash", {"compress_ratios": [5] * 43}, "compress_ratios has '5'"),
        ("deepseek-ai/DeepSeek-V4-Flash", {"o_groups": 7}, "not a multiple of o_groups"),
        ("deepseek-ai/DeepSeek-V4-Flash", {"index_topk": None}, "index_topk"),
        ("google/gemma-3n-E4B", {"num_kv_shared_layers": 35}, "none of the 35 layers a cache"),
        ("google/gemma-3n-E4B", {"intermediate_size": [16384]}, "intermediate_size lists 1 layers"),
        ("google/gemma-4-26B-A4B", {"top_k_experts": 129}, "is more than num_experts 128"),
        ("google/gemma-4-26B-A4B", {"num_global_key_value_heads": 3}, "not a multiple"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", {"block_configs": []}, "must describe each of the 80 layers"),
        ("nvidia/Nemotron-H-56B-Base-8K", {"num_hidden_layers": 3}, "the pattern has 118 layers"),
        ("nvidia/Nemotron-H-56B-Base-8K", {"ssm_state_size": None}, "'ssm_state_size' is missing"),
        ("XiaomiMiMo/MiMo-V2-Flash", {"hybrid_layer_pattern": [1]}, "hybrid_layer_pattern must list"),
        ("XiaomiMiMo/MiMo-V2-Flash", {"swa_num_key_value_heads": 7}, "not a multiple"),
        ("MiniMaxAI/MiniMax-M3", {"moe_layer_freq": [1]}, "moe_layer_freq must list"),
        ("Qwen/Qwen3.5-27B", {"linear_num_key_heads": None}, "'linear_num_key_heads' is missing"),
        ("Qwen/Qwen3.5-27B", {"layer_types": ["odd"] * 64}, "layer_types has 'odd'"),
        ("google/gemma-4-26B-A4B", {"rope_parameters": "x"}, "rope_parameters must be an object"),
        ("google/gemma-4-26B-A4B", {"per_layer_config": ["x"]}, "is a JSON object"),
        ("XiaomiMiMo/MiMo-V2-Flash", {"attn_config": "x"}, "is a JSON object"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_one_line(name, change, says):
    with pytest.raises(ChipError, match=says) as caught:
        model(name, **change)
    assert "\n" not in str(caught.value)


def test_experts_that_gpus_do_not_divide_are_refused():
    raw = PUBLISHED["MiniMaxAI/MiniMax-M3"][1]
    with pytest.raises(ChipError, match="does not divide the 128 experts"):
        chip.predict(raw, gpu="b200", tp=3, ep=3)
