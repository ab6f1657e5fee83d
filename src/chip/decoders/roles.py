"""The parts that operators play in a program, as far as more than one file knows them: an engine's rules, sums over a
breakdown and formats of weights look for what lowering wrote. Others are names for a reader, and stand where they are
written."""

from __future__ import annotations

# Dense layers, and experts, by which formats of weights are known
Q_PROJ, K_PROJ, V_PROJ, QKV_PROJ, O_PROJ = "q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj"
Q_DOWN, Q_UP, KV_DOWN, KV_UP = "q_down", "q_up", "kv_down", "kv_up"  # to and from a latent
GATE_PROJ, UP_PROJ, GATE_UP_PROJ, DOWN_PROJ = "gate_proj", "up_proj", "gate_up_proj", "down_proj"
ROUTER, EXPERTS = "router", "experts"
OF_MLP = (GATE_PROJ, UP_PROJ, GATE_UP_PROJ, DOWN_PROJ, ROUTER, EXPERTS, "latent_in", "latent_out")
SHARED = "shared_"  # before the roles of an MLP that all tokens take beside their experts
# Around attention
Q_NORM, K_NORM, ROPE, KV_APPEND, ATTENTION = "q_norm", "k_norm", "rope", "kv_append", "attention"
# Of a layer's two branches: norms before and after, factors, exchanges between GPUs, additions to the residual
ATTN_NORM, ATTN_POST_NORM, ATTN_SCALE, ATTN_ADD = "attn_norm", "attn_post_norm", "attn_scale", "attn_add"
MLP_NORM, MLP_POST_NORM, MLP_SCALE, MLP_ADD = "mlp_norm", "mlp_post_norm", "mlp_scale", "mlp_add"
MLP_ALL_REDUCE = "mlp_all_reduce"
ACT = "act"
SHARED_ADD = "shared_add"
DISPATCH, COMBINE = "dispatch", "combine"  # tokens sent to their experts on other GPUs, and back
