"""Names of the dense layers of a checkpoint, as `transformers` names them: what the lists of a `quantization_config`
are matched against. Roles are those of a lowered program. Names of experts stand for all of a layer's experts."""

from __future__ import annotations

from collections.abc import Mapping

HEAD = "lm_head"
LAYER = "model.layers.{}."
LLAMA: Mapping[str, tuple[str, ...]] = {
    **{role: (f"self_attn.{role}",) for role in ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj")},
    **{role: (f"mlp.{role}",) for role in ("gate_proj", "up_proj", "gate_up_proj", "down_proj")},
    "attn_gate": ("self_attn.gate_proj",),
    "index_q": ("self_attn.indexer.wq_b",),
    "index_k": ("self_attn.indexer.wk",),
    "index_weights": ("self_attn.indexer.weights_proj",),
    "state_in": ("mamba.in_proj",),
    "state_qkvz": ("linear_attn.in_proj_qkvz",),
    "state_ba": ("linear_attn.in_proj_ba",),
    "state_x": ("mamba.x_proj",),
    "state_dt": ("mamba.dt_proj",),
    "state_out": ("mamba.out_proj",),
    "q_down": ("self_attn.q_a_proj",),
    "q_up": ("self_attn.q_b_proj",),
    "kv_down": ("self_attn.kv_a_proj_with_mqa",),
    "kv_up": ("self_attn.kv_b_proj",),
    "router": ("mlp.gate",),
    "experts": tuple(f"mlp.experts.0.{name}" for name in ("gate_proj", "up_proj", "down_proj")),
    **{f"shared_{role}": (f"mlp.shared_experts.{role}",) for role in ("gate_proj", "up_proj", "down_proj")},
    "shared_gate": ("mlp.shared_expert_gate",),
}
TWO_MATRICES = {"up_proj": ("mlp.c_fc",), "down_proj": ("mlp.c_proj",)}
FC = {"up_proj": ("mlp.fc1",), "down_proj": ("mlp.fc2",)}
FUSED_4H = {"up_proj": ("mlp.dense_h_to_4h",), "down_proj": ("mlp.dense_4h_to_h",)}

# Where an architecture departs from Llama: (prefix of a layer, names by role, name of the output matrix)
Names = tuple[str, Mapping[str, tuple[str, ...]], str]
GPT2: Names = ("transformer.h.{}.", {"qkv_proj": ("attn.c_attn",), "o_proj": ("attn.c_proj",), **TWO_MATRICES}, HEAD)
OTHERS: Mapping[str, Names] = {
    "BloomForCausalLM": (
        "transformer.h.{}.",
        {"qkv_proj": ("self_attention.query_key_value",), "o_proj": ("self_attention.dense",), **FUSED_4H},
        HEAD,
    ),
    "FalconForCausalLM": (
        "transformer.h.{}.",
        {"qkv_proj": ("self_attention.query_key_value",), "o_proj": ("self_attention.dense",), **FUSED_4H},
        HEAD,
    ),
    "Gemma3ForConditionalGeneration": ("model.language_model.layers.{}.", {}, HEAD),
    "GPT2LMHeadModel": GPT2,
    "GPTBigCodeForCausalLM": GPT2,
    "GPTJForCausalLM": (
        "transformer.h.{}.",
        {
            **{role: (f"attn.{role}",) for role in ("q_proj", "k_proj", "v_proj")},
            "o_proj": ("attn.out_proj",),
            "up_proj": ("mlp.fc_in",),
            "down_proj": ("mlp.fc_out",),
        },
        HEAD,
    ),
    "GPTNeoXForCausalLM": (
        "gpt_neox.layers.{}.",
        {"qkv_proj": ("attention.query_key_value",), "o_proj": ("attention.dense",), **FUSED_4H},
        HEAD,
    ),
    "GptOssForCausalLM": (LAYER, {"router": ("mlp.router",), "experts": ("mlp.experts",)}, HEAD),
    "MixtralForCausalLM": (
        LAYER,
        {
            "router": ("block_sparse_moe.gate",),
            "experts": tuple(f"block_sparse_moe.experts.0.{name}" for name in ("w1", "w2", "w3")),
        },
        HEAD,
    ),
    "OPTForCausalLM": (
        "model.decoder.layers.{}.",
        {"o_proj": ("self_attn.out_proj",), "up_proj": ("fc1",), "down_proj": ("fc2",)},
        HEAD,
    ),
    "PhiForCausalLM": (LAYER, {"o_proj": ("self_attn.dense",), **FC}, HEAD),
    "Qwen2MoeForCausalLM": (
        LAYER,
        {f"shared_{role}": (f"mlp.shared_expert.{role}",) for role in ("gate_proj", "up_proj", "down_proj")},
        HEAD,
    ),
    "Starcoder2ForCausalLM": (LAYER, TWO_MATRICES, HEAD),
}


def of_role(architecture: str, layer: int, role: str) -> tuple[str, ...]:
    """Full names of the dense layers that play a role in a layer; several for experts."""
    prefix, names, _ = OTHERS.get(architecture, (LAYER, {}, HEAD))
    return tuple(prefix.format(layer) + name for name in names.get(role) or LLAMA[role])


def head(architecture: str) -> str:
    return OTHERS[architecture][2] if architecture in OTHERS else HEAD
