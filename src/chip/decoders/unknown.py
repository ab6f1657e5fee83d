"""An architecture that no family serves: which known one has the same fields, and what would have to be true."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from chip.decoders import config, multimodal
from chip.decoders.config import Config
from chip.types import ChipError

LIKE = (  # fields that set a config apart -> the model type that has them
    (("linear_num_key_heads", "linear_num_value_heads"), "qwen3_next", "Qwen3-Next's gated delta nets"),
    (("hybrid_override_pattern", "mamba_num_heads"), "nemotron_h", "Nemotron-H's blocks"),
    (("mamba_n_heads", "layer_types"), "granitemoehybrid", "Granite 4's Mamba-2 layers"),
    (("compress_ratios", "o_lora_rank"), "deepseek_v4", "DeepSeek V4's compressed attention"),
    (("index_topk", "kv_lora_rank"), "deepseek_v32", "DeepSeek V3.2's indexer"),
    (("hidden_size_per_layer_input",), "gemma4", "Gemma 4's layers"),
    (("kv_lora_rank", "qk_rope_head_dim"), "deepseek_v3", "latent attention as DeepSeek's"),
    (("num_experts", "moe_intermediate_size"), "qwen3_moe", "routed experts as Qwen3-MoE's"),
    (("num_local_experts",), "mixtral", "routed experts as Mixtral's"),
    (("use_qk_norm",), "qwen3", "Llama's layers with normed queries and keys"),
    (("hidden_size", "num_attention_heads", "intermediate_size"), "llama", "Llama's layers"),
)
WITH_STATES = 6  # rows that say what states, indexers and tables a layer has
# What neither attention nor experts are: sizes of states, convolutions and indexers
STATES = (
    "ssm_cfg", "mamba_d_state", "ssm_state_size", "state_size", "mamba_num_heads", "linear_num_key_heads",
    "conv_L_cache",
    "linear_attn_config", "attn_type_list", "index_topk", "compress_ratios",
)  # fmt: skip


def architecture_of(model_type: str, served: Collection[str]) -> str:
    """The class that `--as` names by its model type or by itself. `served`: all that are."""
    by_type = {_letters(a.removesuffix("ForCausalLM")): a for a in served if a.endswith("ForCausalLM")}
    known = multimodal.TYPES.get(model_type) or multimodal.class_of(model_type)
    known = known or (model_type if model_type in served else "") or by_type.get(_letters(model_type), "")
    if known:
        return known
    types = (*config.table()["model_types"], *multimodal.TYPES, *by_type)
    near = get_close_matches(model_type[:80], types, 3)
    hint = (
        f"did you mean {' or '.join(near)}?" if near else "for example llama, qwen3, qwen3_moe, mixtral or deepseek_v3"
    )
    raise ChipError(f"--as {model_type[:40]!r} is no model type that is known; {hint}")


def _letters(name: str) -> str:
    """As names of classes and of model types agree: nemotron_h and NemotronH."""
    return "".join(c for c in name.lower().removesuffix("_text") if c.isalnum())


def explain(c: Config, architecture: str, known: tuple[str, ...]) -> str:
    """One line: the nearest known architectures, and the family whose fields these are."""
    near = get_close_matches(architecture[:80], known, 2, 0.6)
    text = f"{c.where}: architecture {architecture[:80]!r} is not known"
    text += f" (nearest: {', '.join(near)})" if near else ""
    states = [field for field in STATES if c.has(field)]
    rows = LIKE[:WITH_STATES] if states else LIKE
    like = next(((model_type, what) for names, model_type, what in rows if all(map(c.has, names))), None)
    if like:
        text += f"; its fields are those of {like[1]}: if that is what it computes, --as {like[0]} answers"
    elif states:
        text += f"; {states[0]} tells of layers that are neither attention nor experts"
    return text + "; with torch and transformers installed, --trace takes its operators from what really runs"
