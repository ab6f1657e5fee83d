"""Tiny models for tests that really run: every family shrunk to two narrow layers, and a folder with weights and words.

The folder's model is random, its tokenizer knows a few words, its chat template marks who speaks.
"""

import json
from pathlib import Path

from chip.decoders import architectures

MODELS = Path(__file__).resolve().parents[2] / "src" / "chip" / "data" / "models"
SMALL = {
    "hidden_size": 64, "n_embd": 64, "num_hidden_layers": 2, "n_layer": 2, "num_attention_heads": 4, "n_head": 4,
    "num_key_value_heads": 2, "num_kv_heads": 2, "head_dim": 16, "intermediate_size": 96, "ffn_dim": 96, "n_inner": 96,
    "word_embed_proj_dim": 64, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 4,
    "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "vocab_size": 256, "q_lora_rank": 16,
    "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "query_pre_attn_scalar": 16,
    "rotary_dim": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "n_positions": 256,
    "max_position_embeddings": 256, "sliding_window": 12,
}  # fmt: skip
NARROW = {key: SMALL[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")}
UNBUNDLED = {  # families of which no model is bundled
    "OlmoForCausalLM": {"model_type": "olmo", "intermediate_size": 96},
    "Olmo3ForCausalLM": {"model_type": "olmo3", "intermediate_size": 96, "sliding_window": 12},
    "OlmoeForCausalLM": {"model_type": "olmoe", "intermediate_size": 48, "num_experts": 4, "num_experts_per_tok": 2},
    "Cohere2ForCausalLM": {"model_type": "cohere2", "intermediate_size": 96, "num_key_value_heads": 2},
    "Glm4ForCausalLM": {"model_type": "glm4", "intermediate_size": 96, "head_dim": 16},
    "Glm4MoeForCausalLM": {
        "model_type": "glm4_moe", "intermediate_size": 96, "moe_intermediate_size": 32, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "head_dim": 16, "num_key_value_heads": 2,
    },
    "SmolLM3ForCausalLM": {"model_type": "smollm3", "intermediate_size": 96},
    "SeedOssForCausalLM": {"model_type": "seed_oss", "intermediate_size": 96, "head_dim": 16, "num_key_value_heads": 2},
    "GPTBigCodeForCausalLM": {"model_type": "gpt_bigcode", "n_positions": 256},
}  # fmt: skip
# Families of rows: held against transformers by their parameters alone
ROWS = ("standard", "latent", "hybrid", "deepseek_v4", "gemma4", "inkling", "looped", "puzzle")
WORDS = ("the", "cat", "sat", "on", "a", "mat", "said", "hello", "world", "be", "brief", "who", "are", "you")
TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|> ' + m['content'] + ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def shrink(raw):
    small = {k: SMALL.get(k, v) if v is not None else None for k, v in raw.items()}
    small.pop("quantization_config", None)
    small.pop("max_window_layers", None)
    if "layer_types" in small:
        small["layer_types"] = ["sliding_attention", "full_attention"]
    if "kv_lora_rank" in small:
        small["num_key_value_heads"] = small["num_attention_heads"]
    return {**small, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def bundled(name):
    return shrink(json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8")))


def families():
    """Architecture -> a tiny config of it, of those that a family's own file describes."""
    described = {name for name, family in architectures().items() if family not in ROWS}
    found = {}
    for path in sorted(MODELS.glob("*.json")):
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["architectures"][0] in described:
            found.setdefault(raw["architectures"][0], shrink(raw))
    return {**found, **{k: {"architectures": [k], **NARROW, "pad_token_id": 0, **v} for k, v in UNBUNDLED.items()}}


def save_config(path, name="tinyllama-1.1b"):
    path.write_text(json.dumps(bundled(name)))
    return path


def save_folder(folder, template=TEMPLATE):
    """A llama with random weights as safetensors, a tokenizer of a few words, and a chat template unless it is ""."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    special = ["<unk>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>"]
    vocab = {word: i for i, word in enumerate([*special, *WORDS])}
    words = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>",
        additional_special_tokens=special[3:],
    )  # fmt: skip
    if template:
        tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    config = AutoConfig.for_model(**{**bundled("tinyllama-1.1b"), "vocab_size": len(vocab)})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder
