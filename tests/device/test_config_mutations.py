"""Configs with a field changed: the parameters that transformers builds, or a refusal where it refuses.

Each case below was found by tests/campaign/configs.py, which looks for more.
"""

import random
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "campaign"), str(ROOT / "benchmarks")]

import configs  # noqa: E402

from chip.decoders import config, describe  # noqa: E402
from chip.types import ChipError  # noqa: E402

FAMILIES = configs._families
FOUND = [
    ("BloomForCausalLM", {"apply_residual_connection_post_layernorm": None}),
    ("Qwen3MoeForCausalLM", {"decoder_sparse_step": None}),
    ("Qwen3MoeForCausalLM", {"num_experts": None}),
    ("Qwen3MoeForCausalLM", {"head_dim": None}),
    ("Qwen3MoeForCausalLM", {"num_local_experts": 5}),
    ("MixtralForCausalLM", {"num_experts": 5}),
    ("OlmoeForCausalLM", {"num_local_experts": 3}),
    ("DeepseekV3ForCausalLM", {"num_local_experts": 8}),
    ("DeepseekV2ForCausalLM", {"q_lora_rank": 0}),
    ("DeepseekV3ForCausalLM", {"q_lora_rank": 0}),
    ("DeepseekV3ForCausalLM", {"v_head_dim": None}),
    ("DeepseekV3ForCausalLM", {"first_k_dense_replace": None}),
    ("GlmForCausalLM", {"head_dim": None}),
    ("GlmForCausalLM", {"num_key_value_heads": None}),
    ("Qwen2MoeForCausalLM", {"num_key_value_heads": None}),
    ("GPTNeoXForCausalLM", {"head_dim": 4}),
    ("GPTNeoXForCausalLM", {"num_key_value_heads": 2}),
    ("GPTNeoXForCausalLM", {"rotary_emb_base": None}),
    ("StableLmForCausalLM", {"head_dim": 5}),
    ("StableLmForCausalLM", {"num_key_value_heads": None}),
    ("FalconForCausalLM", {"head_dim": 8}),
    ("FalconForCausalLM", {"num_kv_heads": None}),
    ("FalconForCausalLM", {"bias": None}),
    ("FalconForCausalLM", {"model_type": "llama"}),
    ("GPT2LMHeadModel", {"add_cross_attention": True}),
    ("GPT2LMHeadModel", {"hidden_size": 32}),
    ("GPTBigCodeForCausalLM", {"add_cross_attention": True}),
    ("SeedOssForCausalLM", {"head_dim": None}),
    ("Gemma2ForCausalLM", {"head_dim": 7}),
    ("Gemma3ForCausalLM", {"num_attention_heads": 24}),
    ("Gemma3ForCausalLM", {"sliding_window_pattern": None}),
    ("Gemma3ForCausalLM", {"rope_scaling": [1]}),
    ("GemmaForCausalLM", {"layer_types": 24}),
    ("LlamaForCausalLM", {"hidden_act": "8"}),
    ("LlamaForCausalLM", {"rms_norm_eps": 24}),
    ("LlamaForCausalLM", {"tie_word_embeddings": None}),
    ("LlamaForCausalLM", {"torch_dtype": 16}),
    ("LlamaForCausalLM", {"pad_token_id": 256}),
    ("LlamaForCausalLM", {"max_position_embeddings": None}),
    ("Qwen3ForCausalLM", {"rope_theta": None}),
    ("GptOssForCausalLM", {"rope_scaling": {"rope_type": "yarn", "factor": 32.0, "rope_theta": None}}),
    ("GptOssForCausalLM", {"rope_scaling": {"rope_type": "yarn", "factor": 32.0, "rope_theta": False}}),
    ("DeepseekV3ForCausalLM", {"head_dim": "8"}),
    ("StableLmForCausalLM", {"head_dim": []}),
    ("PhiForCausalLM", {"head_dim": None}),
    ("OlmoeForCausalLM", {"head_dim": 6}),
    ("Cohere2ForCausalLM", {"sliding_window_pattern": None}),
    ("Starcoder2ForCausalLM", {"pad_token_id": []}),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("architecture", "change"), FOUND, ids=lambda v: str(v)[:60])
def test_found_by_the_campaign(architecture, change):
    raw = {**FAMILIES[architecture], "architectures": [architecture], **change}
    assert configs.check({"config": raw, "against": True}) == ""


@pytest.mark.filterwarnings("ignore")
def test_some_more_at_random():
    for i in range(150):
        case = {**configs.case(random.Random(f"test:{i}")), "against": True}
        assert configs.check(case) == "", case


def test_whole_families_are_described_as_transformers_builds_them():
    for architecture, raw in FAMILIES.items():
        assert configs.check({"config": {**raw, "architectures": [architecture]}, "against": True}) == ""


def test_the_table_is_that_of_its_version():
    import config_fields  # with half of transformers: here, no worker imports it that only collects this

    if transformers.__version__ != config.table()["transformers"]:
        pytest.skip(f"the table is of transformers {config.table()['transformers']}")
    assert config_fields.table() == config.table()


def test_a_refusal_names_the_field_as_it_was_given():
    raw = {**FAMILIES["GPT2LMHeadModel"], "architectures": ["GPT2LMHeadModel"], "hidden_size": "wide"}
    with pytest.raises(ChipError, match="hidden_size must be a whole number, got 'wide'"):
        describe(raw, "it", "it")
