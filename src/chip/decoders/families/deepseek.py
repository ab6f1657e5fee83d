"""DeepSeek V2 and V3: latent attention; after the first dense layers, routed experts beside shared ones."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, LatentAttn, Layer, Mlp, Moe
from chip.decoders.spelling import stack

ARCHITECTURES = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden, layers = c.size("hidden_size"), c.layer_count()
    c.refuse_null(
        "first_k_dense_replace", "v_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank", "head_dim"
    )
    v3 = architecture == "DeepseekV3ForCausalLM"
    attn = LatentAttn(
        c.size("num_attention_heads"),
        1536 if c.omits("q_lora_rank") else c.size("q_lora_rank") if c.has("q_lora_rank") else 0,
        c.size("kv_lora_rank", default=512),
        c.size("qk_nope_head_dim", default=128),
        c.size("qk_rope_head_dim", default=64),
        c.size("v_head_dim", default=128),
        bias=c.flag("attention_bias", False),
    )
    bias = not v3 and c.flag("mlp_bias", False)
    experts = c.size("n_routed_experts", default=256 if v3 else 64)
    inner = c.size("moe_intermediate_size", default=2048 if v3 else 1407)
    shared = c.count("n_shared_experts", default=1 if v3 else 2) * inner
    top_k = c.top_k("num_experts_per_tok", "n_routed_experts", experts, default=8 if v3 else None)
    router, groups = "biased_router" if v3 else "grouped_router", c.size("n_group", default=8 if v3 else 1)
    both = Mlp(shared, bias=bias) if shared else None
    moe = Layer(attn, Moe(experts, top_k, inner, shared=both, router=router, groups=groups))
    dense = min(layers, c.count("first_k_dense_replace", default=3 if v3 else 0))
    stacked = [moe] * (layers - dense)
    if dense:
        stacked = [Layer(attn, Mlp(c.size("intermediate_size"), bias=bias))] * dense + stacked
    return stack(c, name, architecture, hidden, stacked, tied=False)
