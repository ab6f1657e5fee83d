"""Configs in the form that publishers write them, and any others: understood, or refused in one line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantised_configs import BLOCKS, F8, GPTQ, MODELS, TOKEN, W4, ct, roles, said, weight_bytes

from chip.decoders import describe
from chip.decoders.formats import UNIFORM
from chip.decoders.quantization_methods import METHODS
from chip.files import artifact
from chip.types import ChipError

# --- configs in the form that publishers write them: (model, quantization_config, dtype, KV cache)

NORMS = ("input_layernorm", "mlp.gate", "post_attention_layernorm")
STATIC = {"dynamic": False, "num_bits": 8, "strategy": "tensor", "symmetric": True, "type": "float"}
PUBLISHED = {
    "fp8 blocks, norms and routers listed": (
        "qwen3-30b-a3b",
        {**BLOCKS, "modules_to_not_convert": ["lm_head", *(f"model.layers.{i}.{n}" for i in range(48) for n in NORMS)]},
        "fp8",
        "",
    ),
    "llm-compressor W4A16": (
        "llama-3.1-70b",
        {
            **ct({**W4, "actorder": "weight", "block_structure": None, "observer": "mse", "observer_kwargs": {}}),
            "format": "pack-quantized",
            "kv_cache_scheme": None,
            "quantization_status": "compressed",
        },
        "int4",
        "",
    ),
    "llm-compressor FP8, routers listed": (
        "mixtral-8x7b",
        ct(F8, TOKEN, ignore=["lm_head", *(f"model.layers.{i}.block_sparse_moe.gate" for i in range(32))]),
        "fp8",
        "",
    ),
    "llm-compressor FP8 with static scales and cache": (
        "llama-3.1-8b",
        ct(STATIC, STATIC, kv_cache_scheme=STATIC),
        "fp8",
        "fp8",
    ),
    "AutoGPTQ": ("qwen2.5-7b", {**GPTQ, "damp_percent": 0.01, "dataset": None, "true_sequential": True}, "int4", ""),
    "bitsandbytes NF4": (
        "llama-3.1-8b",
        {
            "quant_method": "bitsandbytes",
            "_load_in_4bit": True,
            "_load_in_8bit": False,
            "load_in_4bit": True,
            "load_in_8bit": False,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
            "llm_int8_skip_modules": None,
        },
        "int4",
        "",
    ),
    "ModelOpt NVFP4, wildcards and a draft layer": (
        "deepseek-v3",
        {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
            "ignore": ["lm_head", "model.layers.0.self_attn*", "model.layers.61*"],
        },
        "nvfp4",
        "fp8",
    ),
    "a multimodal model, other towers listed": (
        "gemma-3-27b",
        ct(W4, ignore=["lm_head", "re:.*vision_tower.*", "re:.*multi_modal_projector.*"]),
        "int4",
        "",
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_forms_are_understood(name):
    model, fields, dtype, kv = PUBLISHED[name]
    raw = artifact.read_json(MODELS / f"{model}.json")
    d = describe({**raw, "quantization_config": fields}, model, model)
    assert (d.dtype, d.kv_dtype, d.head_format) == (dtype, kv, None)
    tables = (1 if d.tied else 2) * d.vocab * d.hidden
    bits = 8 * (weight_bytes(d) - 2 * tables) / (d.params() - tables)
    stored = {"fp8": 8, "int4": 4, "nvfp4": 4}[dtype]
    assert stored < bits < stored + 0.7  # with scales, and what is left out


# --- anything at all

WORDS = st.sampled_from(
    ["fp8", "awq", "gptq", "int", "float", "group", "channel", "tensor", "block", "token", "Linear", "lm_head", "NVFP4",
     "FP8", "MIXED_PRECISION", "static", "re:.*mlp.*", "-:.*", "+:.*up.*", "", "gemm", "e4m3"]
)  # fmt: skip
VALUES = st.text(max_size=3) | st.none() | st.booleans() | st.integers(-2, 300) | st.floats() | WORDS
ANY = st.recursive(VALUES, lambda v: st.lists(v, max_size=3) | st.dictionaries(WORDS, v, max_size=3), max_leaves=6)
FIELDS = (
    "bits", "w_bit", "group_size", "zero_point", "version", "desc_act", "dynamic", "lm_head", "weight_block_size",
    "activation_scheme", "modules_to_not_convert", "ignored_layers", "ignore", "config_groups", "kv_cache_scheme",
    "quant_algo", "kv_cache_quant_algo", "exclude_modules", "quantization", "quantized_layers", "load_in_4bit",
    "load_in_8bit", "bnb_4bit_quant_type", "llm_int8_skip_modules", "fmt",
)  # fmt: skip
ARGS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("num_bits", "group_size"), st.sampled_from([4, 8, 128, -1]) | ANY),
        **dict.fromkeys(("type", "strategy", "symmetric", "dynamic", "block_structure", "actorder"), ANY),
    },
)
GROUPS = st.dictionaries(
    st.sampled_from(["group_0", "two\nlines"]),
    st.fixed_dictionaries({}, optional={"weights": ARGS | ANY, "input_activations": ARGS | ANY, "targets": ANY}),
    max_size=2,
)


@settings(max_examples=150)
@given(
    st.sampled_from([*METHODS, "nosuch"]) | ANY,
    st.dictionaries(st.sampled_from(FIELDS), ANY, max_size=5),
    st.none() | GROUPS,
)
def test_any_config_is_understood_or_refused_in_one_line(method, fields, groups):
    fields = {**fields, "quant_method": method}
    if groups is not None:
        fields["config_groups"] = groups
    try:
        d = said(**fields)
    except ChipError as e:
        told = str(e)
        assert len(told) < 600 and "\n" not in told  # noqa: PT018
        return
    bits16 = 2 * d.params()
    assert 0.2 * bits16 < weight_bytes(d) < 1.6 * bits16
    assert d.dtype in UNIFORM
    roles(d)


def test_text_where_a_number_belongs_stays_in_its_line():
    with pytest.raises(ChipError, match=r"bits 'two\\nlines' is not served; known: 4 bits"):
        said(quant_method="awq", bits="two\nlines")
