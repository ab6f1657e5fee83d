"""Every family against transformers itself: parameters, and the FLOPs that torch counts in real forward passes.

Models are built on the meta device, with few layers and experts but true widths. The passes of each are a prefill, a
decode step of one token and one of three. torch counts matrix products only, and those of attention in full.
"""

import json
import logging
from pathlib import Path

import pytest
from test_rows_against_hf import OWN_FILE

from chip.decoders import describe
from chip.decoders.decoder import Decoder, LatentAttn
from chip.decoders.lower import lower
from chip.dtypes import precision
from chip.types import Seq, Step

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

MODELS = Path(__file__).resolve().parents[2] / "src" / "chip" / "data" / "models"
BATCH = 2
PASSES = ((24, 0), (1, 24), (3, 25))  # (new, past)
SLIDE_FULL = ["sliding_attention", "full_attention"]
SMALL = {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def bundled(name, **changes):
    raw = json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))
    raw.pop("quantization_config", None)  # a checkpoint's format, not the model
    if "n_layer" in raw:
        return {**raw, "n_layer": 2, **changes}
    return {**raw, "num_hidden_layers": 2, **changes}


def inline(architecture, model_type, **settings):
    return {"architectures": [architecture], "model_type": model_type, **SMALL, **settings}


CASES = {
    "llama": bundled("llama-3.1-8b"),
    "llama-tied": bundled("llama-3.2-1b"),
    "llama-biases": bundled("tinyllama-1.1b", attention_bias=True, mlp_bias=True, head_dim=96),
    "mistral": bundled("mistral-7b"),
    "mistral-window": bundled("mistral-7b-v0.1", sliding_window=12),
    "granite": bundled("granite-3.1-8b"),
    "mixtral": bundled("mixtral-8x7b", num_local_experts=4),
    "qwen2": bundled("qwen2.5-7b"),
    "qwen2-slides": bundled(
        "qwen2.5-0.5b", num_hidden_layers=3, use_sliding_window=True, sliding_window=10, max_window_layers=2
    ),
    "qwen3": bundled("qwen3-0.6b"),
    "qwen3-biases": bundled("qwen3-8b", attention_bias=True),
    "qwen2-moe": bundled("qwen1.5-moe-a2.7b", num_experts=6),
    "qwen2-moe-dense-layers": bundled(
        "qwen1.5-moe-a2.7b", num_hidden_layers=4, num_experts=4, decoder_sparse_step=2, mlp_only_layers=[3]
    ),
    "qwen3-moe": bundled("qwen3-30b-a3b", num_hidden_layers=3, num_experts=8, mlp_only_layers=[1]),
    "phi": bundled("phi-2"),
    "phi-norms": inline("PhiForCausalLM", "phi", intermediate_size=96, num_key_value_heads=2, qk_layernorm=True),
    "phi3": bundled("phi-3-mini"),
    "phi3-grouped": bundled("phi-3-medium"),
    "phi4": bundled("phi-4"),
    "gemma": bundled("gemma-2b"),
    "gemma2": bundled("gemma-2-2b", num_hidden_layers=3),
    "gemma2-window": bundled("gemma-2-2b", sliding_window=16),
    "gemma3": bundled("gemma-3-1b", num_hidden_layers=4, sliding_window_pattern=2),
    "gemma3-layer-types": bundled("gemma-3-4b", layer_types=SLIDE_FULL, sliding_window=8),
    "gemma3-multimodal": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 6,
            "sliding_window": 1024,
        },
    },
    "starcoder2": bundled("starcoder2-3b"),
    "gpt2": bundled("gpt2"),
    "gpt-bigcode": bundled(
        "gpt2", architectures=["GPTBigCodeForCausalLM"], model_type="gpt_bigcode", n_positions=64, n_inner=1600
    ),
    "gpt-bigcode-many-heads": inline("GPTBigCodeForCausalLM", "gpt_bigcode", multi_query=False),
    "opt": bundled("opt-125m"),
    "opt-350m": bundled(  # the published sizes of the 350m
        "opt-125m",
        hidden_size=1024,
        ffn_dim=4096,
        num_attention_heads=16,
        word_embed_proj_dim=512,
        do_layer_norm_before=False,
    ),
    "opt-plain": bundled("opt-125m", enable_bias=False, layer_norm_elementwise_affine=False),
    "bloom": bundled("bloom-560m"),
    "gpt-neox": bundled("gpt-neox-20b"),
    "gpt-neox-in-turn": bundled("pythia-1.4b", use_parallel_residual=False, attention_bias=False),
    "falcon-7b": bundled("falcon-7b"),
    "falcon-40b": bundled("falcon-40b"),
    "falcon-11b": bundled("falcon-40b", num_ln_in_parallel_attn=1, ffn_hidden_size=8192),
    "falcon-rw-1b": bundled(
        "falcon-7b",
        hidden_size=2048,
        num_attention_heads=32,
        parallel_attn=False,
        multi_query=False,
        alibi=True,
        bias=True,
    ),
    "deepseek-v2-lite": bundled("deepseek-v2-lite", num_hidden_layers=3, n_routed_experts=8),
    "deepseek-v2": bundled("deepseek-v2", n_routed_experts=8, n_group=4, topk_group=3, attention_bias=True),
    "deepseek-v3": bundled(
        "deepseek-v3", num_hidden_layers=3, first_k_dense_replace=1, n_routed_experts=16, n_group=4, topk_group=2
    ),
    "olmo": inline("OlmoForCausalLM", "olmo", intermediate_size=96, clip_qkv=8.0),
    "olmo2": bundled("olmo-2-7b"),
    "olmo3": inline(
        "Olmo3ForCausalLM", "olmo3", num_hidden_layers=4, intermediate_size=96, num_key_value_heads=2, sliding_window=16
    ),
    "olmoe": inline("OlmoeForCausalLM", "olmoe", intermediate_size=48, num_experts=6, num_experts_per_tok=2),
    "stablelm": bundled("stablelm-2-1.6b"),
    "stablelm-12b": bundled(
        "stablelm-2-1.6b", num_key_value_heads=8, qk_layernorm=True, use_parallel_residual=True, use_qkv_bias=False
    ),
    "gpt-j": bundled("gpt-j-6b"),
    "cohere": bundled("command-r"),
    "cohere-norms": bundled("command-r", use_qk_norm=True, num_key_value_heads=8),
    "cohere2": inline(
        "Cohere2ForCausalLM", "cohere2", num_hidden_layers=4, intermediate_size=96, num_key_value_heads=2
    ),
    "glm": bundled("glm-4-9b"),
    "glm4": inline("Glm4ForCausalLM", "glm4", intermediate_size=96, head_dim=16, pad_token_id=0),
    "glm4-moe": inline(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        num_attention_heads=8,
        intermediate_size=96,
        moe_intermediate_size=48,
        n_routed_experts=8,
        num_experts_per_tok=3,
        use_qk_norm=True,
        attention_bias=True,
        head_dim=16,
    ),
    "gpt-oss": bundled("gpt-oss-20b", num_local_experts=6, layer_types=SLIDE_FULL),
    "gpt-oss-window": bundled("gpt-oss-20b", num_local_experts=6, layer_types=SLIDE_FULL, sliding_window=16),
    "smollm3": inline("SmolLM3ForCausalLM", "smollm3", num_hidden_layers=4, intermediate_size=96, pad_token_id=0),
    "seed-oss": inline("SeedOssForCausalLM", "seed_oss", intermediate_size=96, num_key_value_heads=2, head_dim=16),
}


def test_every_architecture_is_judged():
    assert {raw["architectures"][0] for raw in CASES.values()} == OWN_FILE


def build(raw):
    if raw["architectures"] == ["Gemma3ForConditionalGeneration"]:
        raw = {"architectures": ["Gemma3ForCausalLM"], **raw["text_config"]}  # its language part
    logging.getLogger("transformers").setLevel(logging.ERROR)
    config = transformers.AutoConfig.for_model(**raw)
    config._experts_implementation = "batched_mm"  # the default sends tokens where their values say
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    assert type(model).__name__ == raw["architectures"][0]
    return model


def counted(model, new, cache):
    """FLOPs of a pass, less the outer product of frequencies and positions in rotary embeddings; and its cache."""
    tokens = torch.zeros((BATCH, new), dtype=torch.long, device="meta")
    with torch.no_grad(), torch.device("meta"), FlopCounterMode(display=False) as counter:
        out = model(tokens, past_key_values=cache, use_cache=True)
    assert out.logits.shape[1] == new
    by_module = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    rotary = sum(flops for name, flops in by_module.items() if name.split(".")[-1].startswith("rotary_emb"))
    return counter.get_total_flops() - rotary, out.past_key_values


def expanded_again(d: Decoder, past: int, cache) -> int:
    """Where transformers caches the latent of latent attention, it expands the past anew in every step."""
    total = 0
    for n, layer in d.layers:
        a = layer.attn
        if isinstance(a, LatentAttn) and cache.layers[0].keys.shape[-1] == a.kv_rank:
            total += n * 2 * BATCH * past * a.kv_rank * a.heads * (a.nope_dim + a.v_dim)
    return total


@pytest.mark.parametrize("case", CASES)
def test_family_is_what_transformers_runs(case):
    raw = CASES[case]
    d = describe(raw, case, f"{case}.json")
    model = build(raw)
    assert d.params() == sum(p.numel() for p in model.parameters())
    assert d.layer_count == model.config.num_hidden_layers
    cache = None
    for new, past in PASSES:
        flops, cache = counted(model, new, cache)
        program = lower(d, Step((Seq(new, past, BATCH),)), precision("bf16"), all_logits=True)
        assert program.counted_flops + expanded_again(d, past, cache) == flops, f"{new} new after {past}"
