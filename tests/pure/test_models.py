"""Families: known parameter counts, the laws that lowering keeps, and what a wrong config is told."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from folding import each

import chip
from chip.decoders import architectures, describe, family_names
from chip.decoders.compressed import CompressedAttn
from chip.decoders.lower import check_shards, lower
from chip.dtypes import precision
from chip.ops.experts import MoeExperts
from chip.ops.linear import Linear
from chip.types import ChipError, Seq, Step

MODELS = Path(chip.__file__).parent / "data" / "models"
BUNDLED = sorted(p.stem for p in MODELS.glob("*.json"))
BF16 = precision("bf16")

PUBLISHED = {
    "deepseek-v3": 671_026_404_352,
    "falcon-7b": 6_921_720_704,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b": 999_885_952,
    "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "mixtral-8x7b": 46_702_792_704,
    "opt-125m": 125_239_296,
    "phi-3-mini": 3_821_079_552,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-30b-a3b": 30_532_122_624,
    "tinyllama-1.1b": 1_100_048_384,
}


def raw(name, **changes):
    return {**json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8")), **changes}


def without(config, field):
    return {k: v for k, v in config.items() if k != field}


def model(name, **changes):
    return describe(raw(name, **changes), name, f"{name}.json")


def refusal(config):
    """The one line that a wrong config is told."""
    with pytest.raises(ChipError) as caught:
        describe(config, "it", "it.json")
    line = str(caught.value)
    assert line.startswith("it.json: ")
    assert "\n" not in line
    return line


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_number(name):
    assert model(name).params() == PUBLISHED[name]


def test_active_parameters_of_a_mixture():
    assert model("mixtral-8x7b").active_params() == 12_879_925_248
    assert model("llama-3.1-8b").active_params() == model("llama-3.1-8b").params()


def test_cache_bytes():
    assert model("llama-3.1-8b").kv_bytes(1, BF16) == 131_072
    assert model("llama-3.1-8b").kv_bytes(1, BF16, tp=4) == 131_072 / 4
    assert model("deepseek-v3").kv_bytes(1, BF16, tp=8) == 61 * 576 * 2
    assert model("deepseek-v3").kv_bytes(1, BF16, latent=False, tp=8) == 61 * 128 * (192 + 128) * 2 / 8
    assert model("falcon-7b").kv_bytes(1, BF16, tp=2) == model("falcon-7b").kv_bytes(1, BF16)
    window = model("gemma-3-1b").kv_bytes(4096, BF16)  # 4 layers of 26 see all, the others 512 tokens
    assert window == (4 * 4096 + 22 * 512) * 2 * 256 * 2


@each(BUNDLED)
def test_weights_take_two_bytes_each_and_a_prefill_the_flops_of_its_decode_steps(name):
    narrow = {"sliding_window": 5} if raw(name).get("sliding_window") else {}  # so that the steps outgrow it
    d = model(name, **narrow)
    assert d.weight_bytes(BF16) == 2 * d.params()

    def flops(new, past):
        return lower(d, Step((Seq(new, past, 3),)), BF16, all_logits=True).cost().flops

    if any(isinstance(layer.attn, CompressedAttn) for _, layer in d.layers):
        return  # a prompt is taken to see its mean number of entries
    assert flops(11, 0) == sum(flops(1, past) for past in range(11)) == flops(4, 0) + flops(7, 4)


def test_a_mixed_step_is_its_sequences():
    d = model("llama-3.1-8b")
    mixed = lower(d, Step((Seq(16, 0, 2), Seq(1, 40, 5))), BF16, all_logits=True)
    apart = [lower(d, Step((s,)), BF16, all_logits=True).cost().flops for s in (Seq(16, 0, 2), Seq(1, 40, 5))]
    assert mixed.cost().flops == sum(apart)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "gemma-2-9b", "deepseek-v3"])
def test_only_attention_sees_the_past(name):
    short, long = (lower(model(name), Step((Seq(1, past, 8),)), BF16) for past in (10, 2000))
    for a, b in zip(short.blocks, long.blocks, strict=True):
        differ = [x.role for x, y in zip(a.calls, b.calls, strict=True) if x != y]
        assert set(differ) <= {"attention"}


WHOLE_ON_EACH = {"router", "q_down", "kv_down", "shared_gate"}  # small, so every GPU does all of it


@pytest.mark.parametrize(
    ("name", "tp"),
    [
        ("command-r", 4),
        ("deepseek-v3", 8),
        ("gemma-2-9b", 8),
        ("gpt-neox-20b", 2),
        ("gpt2", 3),
        ("llama-3.1-8b", 8),
        ("mixtral-8x7b", 4),
        ("phi-3-medium", 2),
        ("qwen1.5-moe-a2.7b", 4),
        ("qwen2.5-7b", 4),
    ],
)
def test_shards_together_do_the_work_of_one(name, tp):
    d = model(name, vocab_size=48_000)
    check_shards(d, tp)

    def matmuls(ranks):
        blocks = lower(d, Step((Seq(7, 0, 2),)), BF16, tp=ranks).blocks
        calls = [(b.repeat, c) for b in blocks for c in b.calls if isinstance(c.op, (Linear, MoeExperts))]
        return sum(n * c.op.counted_flops for n, c in calls if c.role not in WHOLE_ON_EACH)

    assert tp * matmuls(tp) == matmuls(1)


@pytest.mark.parametrize(("name", "tp", "what"), [("falcon-7b", 2, "71 attention heads"), ("gpt2", 5, "12 attention")])
def test_shards_that_do_not_divide_are_refused(name, tp, what):
    with pytest.raises(ChipError, match=what):
        check_shards(model(name), tp)


def test_parallel_branches_are_added_after_both():
    roles = [c.role for c in lower(model("gpt-j-6b"), Step((Seq(1, 0),)), BF16).blocks[1].calls]
    assert roles[-3:] == ["down_proj", "attn_add", "mlp_add"]
    assert "mlp_norm" not in roles


def test_each_architecture_has_one_family():
    served = [a for f in family_names() for a in import_module(f"chip.decoders.families.{f}").ARCHITECTURES]
    assert len(served) == len(set(served)) == len(architectures())


def test_a_model_type_may_be_absent_but_not_another_familys():
    absent = describe(without(raw("qwen2.5-7b"), "model_type"), "it", "it.json")
    assert absent.params() == model("qwen2.5-7b").params()
    for other in ("", None, "llama"):
        assert "is not that of Qwen2ForCausalLM" in refusal(raw("qwen2.5-7b", model_type=other))
    assert model("gemma-3-1b").architecture == "Gemma3ForCausalLM"


def test_null_and_absent_windows_differ_as_in_transformers():
    assert model("mistral-7b", sliding_window=None).layers[0][1].attn.window == 0
    absent = describe(without(raw("mistral-7b"), "sliding_window"), "it", "it.json")
    assert absent.layers[0][1].attn.window == 4096


@pytest.mark.parametrize("config", [[], "text", 3, None])
def test_a_config_is_an_object(config):
    assert "JSON object" in refusal(config)


def test_architecture_must_be_known():
    assert "'architectures' is missing" in refusal({"model_type": "llama"})
    assert "'architectures' is missing" in refusal({"architectures": []})
    assert "'UnheardForCausalLM' is not known" in refusal({"architectures": ["UnheardForCausalLM"]})
    assert "architectures must be a list" in refusal({"architectures": [1]})


ESSENTIAL = [
    (name, field)
    for name, fields in {
        "bloom-560m": "n_embed n_layer num_attention_heads vocab_size",
        "command-r": "hidden_size intermediate_size num_hidden_layers num_attention_heads vocab_size",
        "deepseek-v2-lite": "hidden_size num_hidden_layers num_attention_heads vocab_size num_experts_per_tok",
        "falcon-7b": "hidden_size num_hidden_layers num_attention_heads vocab_size",
        "gemma-2-2b": "hidden_size intermediate_size num_hidden_layers num_attention_heads vocab_size",
        "gemma-3-1b": "hidden_size intermediate_size num_hidden_layers",
        "gpt-j-6b": "n_embd n_layer n_head vocab_size",
        "gpt-oss-20b": "hidden_size intermediate_size num_hidden_layers num_attention_heads vocab_size",
        "gpt2": "n_embd n_layer n_head vocab_size",
        "llama-3.1-8b": "hidden_size intermediate_size num_hidden_layers num_attention_heads vocab_size",
        "mixtral-8x7b": "hidden_size intermediate_size num_hidden_layers num_attention_heads vocab_size",
        "opt-125m": "hidden_size ffn_dim num_hidden_layers num_attention_heads vocab_size",
        "qwen3-30b-a3b": "hidden_size num_hidden_layers num_attention_heads vocab_size",
    }.items()
    for field in fields.split()
]


@each(ESSENTIAL)
def test_a_missing_or_senseless_size_is_named(name, field):
    assert "missing" in refusal(without(raw(name), field))
    for value in (0, -1, 10**9, 10**30, 1.5, "4096", True, [4096], {}):
        assert field in refusal(raw(name, **{field: value})), value


@each(
    [
        (
            "llama-3.1-8b",
            {"num_key_value_heads": 5},
            "num_attention_heads 32 is not a multiple of num_key_value_heads 5",
        ),
        ("llama-3.1-8b", {"num_attention_heads": 24}, "hidden_size 4096 is not a multiple of num_attention_heads 24"),
        ("llama-3.1-8b", {"head_dim": -1}, "head_dim must be between 1"),
        ("llama-3.1-8b", {"attention_bias": "no"}, "attention_bias must be true or false"),
        ("llama-3.1-8b", {"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false"),
        ("llama-3.1-8b", {"max_position_embeddings": -5}, "max_position_embeddings must be between 0"),
        ("llama-3.1-8b", {"model_type": 7}, "model_type must be text"),
        ("mistral-7b", {"sliding_window": -1}, "sliding_window must be between 0"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "num_experts_per_tok 9 is more than num_local_experts 8"),
        ("qwen3-30b-a3b", {"num_experts_per_tok": 0}, "num_experts_per_tok must be between 1"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [48]}, "mlp_only_layers names layer 48, but there are 48"),
        ("qwen3-30b-a3b", {"mlp_only_layers": ["a"]}, "mlp_only_layers must be a list of layer indices"),
        ("qwen1.5-moe-a2.7b", {"decoder_sparse_step": 0}, "decoder_sparse_step must be between 1"),
        ("deepseek-v3", {"num_experts_per_tok": 257}, "num_experts_per_tok 257 is more than n_routed_experts 256"),
        ("deepseek-v3", {"kv_lora_rank": 0}, "kv_lora_rank must be between 1"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "layer_types lists 1 layers, but there are 24"),
        ("gpt-oss-20b", {"layer_types": ["linear_attention"] * 24}, "layer_types has 'linear_attention'"),
        ("gpt-oss-20b", {"layer_types": "sliding_attention"}, "layer_types must be a list"),
        ("gpt-oss-20b", {"sliding_window": None}, "sliding_window gives no window"),
        ("gpt2", {"n_head": 7}, "n_embd 768 is not a multiple of n_head 7"),
        ("gpt2", {"activation_function": "mish"}, "activation_function 'mish' is not known"),
        ("falcon-40b", {"num_kv_heads": 7}, "num_attention_heads 128 is not a multiple of num_kv_heads 7"),
        ("phi-2", {"partial_rotary_factor": 1.5}, "partial_rotary_factor must be above 0 and at most 1"),
        ("phi-2", {"partial_rotary_factor": "half"}, "partial_rotary_factor must be a number"),
        ("phi-2", {"rope_parameters": {"partial_rotary_factor": -1}}, "rope_parameters: partial_rotary_factor must be"),
    ]
)
def test_a_wrong_field_is_named(name, changes, what):
    assert what in refusal(raw(name, **changes))


def test_the_language_part_of_a_model_that_sees():
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    assert "'text_config' is missing" in refusal(config)
    assert "text_config: a model config is a JSON object" in refusal({**config, "text_config": 3})
    assert "text_config: hidden_size must be" in refusal({**config, "text_config": {"hidden_size": 0}})
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    d = describe({**config, "text_config": text}, "it", "it.json")  # as published: the rest is left to defaults
    assert d.params() == model("gemma-3-4b").params()
    assert [n for n, _ in d.layers] == [29, 5]


@pytest.mark.parametrize("bad", [None, 0, -3, 2.5, "x", [], {}, True, 10**12])
def test_no_field_makes_a_family_fall_over(bad):
    """Whatever stands in a field, the answer is a model or one clear line. One model of each architecture: the
    campaign tries all of them."""
    told = set()
    for name in {raw(name)["architectures"][0]: name for name in BUNDLED}.values():
        config = raw(name)
        for field in config:
            try:
                d = describe({**config, field: bad}, name, "it.json")
                lower(d, Step((Seq(2, 1),)), BF16)
            except ChipError as e:
                told.add(str(e))
    assert told
    assert all(line.startswith("it.json: ") for line in told)
