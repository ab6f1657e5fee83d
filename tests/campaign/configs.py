"""Model configs that were damaged: described or refused in one line, with the parameters that transformers would build.

Every case is a tiny config of a known family with one to three fields changed. One in `AGAINST` is also built by
transformers on the meta device; a config that transformers refuses must be refused here too.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "device"))

from tiny_models import SMALL, families  # noqa: E402

from chip.decoders import describe  # noqa: E402
from chip.types import ChipError  # noqa: E402

NAME = "configs"
LIMIT_S = 60.0  # transformers takes its time
OWN_S = 0.5  # for chip alone
AGAINST = 8
COUNTED: Counter[str] = Counter()
LARGEST = 100_000  # of a number in a config that transformers is given
SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 100, 128)
ODD = (-1, 2**31, 10**9, 1.5, 0.0, "8", "", "gelu", "relu", "nothing", [], [1], {}, True, False, None)
SWITCHES = (
    "attention_bias", "mlp_bias", "tie_word_embeddings", "use_sliding_window", "use_qk_norm", "qk_layernorm", "bias",
    "alibi", "multi_query", "new_decoder_architecture", "parallel_attn", "use_parallel_residual", "use_qkv_bias",
    "qkv_bias", "use_bias", "enable_bias", "do_layer_norm_before", "layer_norm_elementwise_affine",
    "_remove_final_layer_norm", "attention_out_bias", "add_cross_attention", "is_decoder", "scale_attn_weights",
)  # fmt: skip
ALIASES = (
    "num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "n_head", "n_embd", "n_embed",
    "n_layer", "num_kv_heads", "num_key_value_heads", "head_dim", "n_inner", "ffn_hidden_size", "ffn_dim",
    "intermediate_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "n_positions", "rotary_dim",
    "rotary_pct", "partial_rotary_factor", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim", "first_k_dense_replace", "n_shared_experts", "moe_intermediate_size", "decoder_sparse_step",
    "mlp_only_layers", "shared_expert_intermediate_size", "word_embed_proj_dim", "max_position_embeddings",
    "num_ln_in_parallel_attn", "sliding_window", "sliding_window_pattern", "layer_types", "hidden_act",
    "hidden_activation", "activation_function", "activation", "no_rope_layers", "no_rope_layer_interval",
    "max_window_layers", "vocab_size", "final_logit_softcapping", "topk_group", "n_group",
)  # fmt: skip
_families = families()


def case(draw: Random) -> dict[str, Any]:
    architecture = draw.choice(sorted(_families))
    raw = {**_families[architecture], "architectures": [architecture]}
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3))):
        _change(raw, draw)
    return {"config": raw, "against": draw.randrange(AGAINST) == 0}


def _change(raw: dict[str, Any], draw: Random) -> None:
    kept = [k for k in sorted(raw) if k not in ("architectures", "model_type")]
    how = draw.randrange(8)
    if how == 0:
        raw.pop(draw.choice(kept))
    elif how == 1:
        raw[draw.choice(kept)] = None
    elif how == 2:
        raw[draw.choice(kept)] = draw.choice(SIZES)
    elif how == 3:
        raw[draw.choice(kept)] = draw.choice(ODD)
    elif how == 4:
        raw[draw.choice(ALIASES)] = draw.choice(SIZES)
    elif how == 5:
        raw[draw.choice(ALIASES)] = draw.choice((None, *ODD, *SMALL.values()))
    elif how == 6:
        raw[draw.choice(SWITCHES)] = draw.choice((True, False, None))
    else:
        raw[draw.choice(("architectures", "model_type"))] = draw.choice((None, "", [], ["?"], "llama", 3, [3], [[]]))


def check(case: dict[str, Any]) -> str:
    raw = case["config"]
    began = time.process_time()
    try:
        mine: int | ChipError = describe(raw, "it", "config").params()
    except ChipError as e:
        if "\n" in str(e) or len(str(e)) > 2000:
            return f"the refusal is not one line: {str(e)[:80]!r}"
        mine = e
    if (took := time.process_time() - began) > OWN_S:
        return f"took {took:.2f} s, the limit is {OWN_S} s"
    if not case["against"] or _large(raw):
        return ""
    COUNTED["against transformers"] += 1
    theirs = transformers_says(raw)
    if isinstance(mine, ChipError) or mine == theirs:
        return ""
    if isinstance(theirs, str):
        return f"answered, and transformers refuses it: {theirs}"
    return f"{mine} parameters, and transformers builds {theirs}"


def _large(raw: dict[str, Any]) -> bool:
    """transformers would be busy for hours with a billion layers."""
    return any(isinstance(v, int) and v > LARGEST for v in raw.values())


def transformers_says(raw: dict[str, Any]) -> int | str:
    """Parameters of what it builds, or why it does not."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity(50)
    plain = dict(raw.get("text_config", raw))
    if "model_type" not in plain:  # a folder's name may tell it
        plain["model_type"] = _families[raw["architectures"][0]]["model_type"]
    try:
        config = transformers.AutoConfig.for_model(**plain)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        model.tie_weights()
    except Exception as e:  # it fails in many ways
        return f"{type(e).__name__}: {next(iter(str(e).splitlines()), '')[:120]}"
    return sum(p.numel() for p in model.parameters())


def smaller(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The same with one change undone, for shrinking."""
    raw = case["config"]
    whole = _families.get((raw.get("architectures") or [""])[0] if isinstance(raw.get("architectures"), list) else "")
    if whole is None:
        return []
    out = []
    for key in sorted({*raw, *whole}):
        if raw.get(key, "absent") != whole.get(key, "absent") and key != "architectures":
            back = {k: v for k, v in raw.items() if k != key}
            out.append({**case, "config": {**back, key: whole[key]} if key in whole else back})
    return out
