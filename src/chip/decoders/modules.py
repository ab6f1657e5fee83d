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
    "state_gate": ("self_attn.g_proj",),
    "q_down": ("self_attn.q_a_proj",),
    "q_up": ("self_attn.q_b_proj",),
    "kv_down": ("self_attn.kv_a_proj_with_mqa",),
    "kv_up": ("self_attn.kv_b_proj",),
    "o_down": ("self_attn.o_a_proj",),
    "latent_in": ("mlp.fc1_latent_proj",),
    "latent_out": ("mlp.fc2_latent_proj",),
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
UP_GATE_DOWN = ("gate_proj", "up_proj", "down_proj")
W123 = ("w1", "w3", "w2")
SPARSE_MOE = {  # MiniMax
    "router": ("block_sparse_moe.gate",),
    "experts": tuple(f"block_sparse_moe.experts.0.{name}" for name in ("w1", "w2", "w3")),
    **{f"shared_{role}": (f"block_sparse_moe.shared_experts.{role}",) for role in UP_GATE_DOWN},
    "index_q": ("self_attn.index_q_proj",),
    "index_k": ("self_attn.index_k_proj",),
}
ONE_SHARED = {f"shared_{role}": (f"mlp.shared_expert.{role}",) for role in UP_GATE_DOWN}
DELTA = {**ONE_SHARED, "state_out": ("linear_attn.out_proj",)}
APART = {
    **DELTA,
    "state_qkvz": ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
    "state_ba": ("linear_attn.in_proj_b", "linear_attn.in_proj_a"),
}
MIXER = {  # Nemotron-H: each branch is a layer of its own
    **{role: (f"mixer.{role}",) for role in ("q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj")},
    "state_in": ("mixer.in_proj",),
    "state_out": ("mixer.out_proj",),
    "router": ("mixer.gate",),
    "experts": tuple(f"mixer.experts.0.{name}" for name in ("up_proj", "down_proj")),
    **{f"shared_{role}": (f"mixer.shared_experts.{role}",) for role in UP_GATE_DOWN},
    "latent_in": ("mixer.fc1_latent_proj",),
    "latent_out": ("mixer.fc2_latent_proj",),
}
V4 = {
    **{"q_down": ("attn.wq_a",), "q_up": ("attn.wq_b",), "kv_down": ("attn.wkv",)},
    **{"o_down": ("attn.wo_a",), "o_proj": ("attn.wo_b",), "index_q": ("attn.indexer.wq_b",), "router": ("ffn.gate",)},
    "experts": tuple(f"ffn.experts.0.{name}" for name in W123),
    **{f"shared_{role}": (f"ffn.shared_experts.{name}",) for role, name in zip(UP_GATE_DOWN, W123)},
}
GEMMA4 = {"router": ("router.proj",), "experts": tuple(f"experts.0.{name}" for name in UP_GATE_DOWN)}
# The MLP beside Gemma 4's experts is that of all tokens
GEMMA4 |= {f"shared_{role}": (f"mlp.{role}",) for role in UP_GATE_DOWN}
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
    "DeepseekV4ForCausalLM": ("layers.{}.", V4, "head"),
    "Gemma4ForCausalLM": (LAYER, GEMMA4, HEAD),
    **dict.fromkeys(("MiniMaxM2ForCausalLM", "MiniMaxM3SparseForCausalLM"), (LAYER, SPARSE_MOE, HEAD)),
    **dict.fromkeys(("NemotronHForCausalLM", "NemotronHPuzzleForCausalLM"), ("backbone.layers.{}.", MIXER, HEAD)),
    "Qwen3NextForCausalLM": (LAYER, DELTA, HEAD),
    **dict.fromkeys(("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"), (LAYER, APART, HEAD)),
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
    "Qwen2MoeForCausalLM": (LAYER, ONE_SHARED, HEAD),
    "Starcoder2ForCausalLM": (LAYER, TWO_MATRICES, HEAD),
}


def of_role(architecture: str, layer: int, role: str) -> tuple[str, ...]:
    """Full names of the dense layers that play a role in a layer; several for experts."""
    prefix, names, _ = OTHERS.get(architecture, (LAYER, {}, HEAD))
    return tuple(prefix.format(layer) + name for name in names.get(role) or LLAMA[role])


def head(architecture: str) -> str:
    return OTHERS[architecture][2] if architecture in OTHERS else HEAD
