"""GLM-4.5: grouped-query attention; after the first dense layers, routed experts beside a shared one."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp, Moe
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("Glm4MoeForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    c.refuse_null("head_dim", "num_key_value_heads")
    hidden, layers = c.size("hidden_size"), c.layer_count()
    qk_norm = "head" if c.flag("use_qk_norm", False) else ""
    bias = c.flag("attention_bias", False)
    attn = attention(c, hidden, kv_heads=8, rotary=c.rotary(0.5), qkv_bias=bias, qk_norm=qk_norm)
    experts = c.size("n_routed_experts", default=128)
    inner = c.size("moe_intermediate_size", default=1408)
    top_k = c.top_k("num_experts_per_tok", "n_routed_experts", experts, default=8)
    shared = c.count("n_shared_experts", default=1) * inner
    groups = c.size("n_group", default=1)
    both = Mlp(shared) if shared else None
    moe = Layer(attn, Moe(experts, top_k, inner, shared=both, router="biased_router", groups=groups))
    dense = min(layers, c.count("first_k_dense_replace", default=1))
    stacked = [Layer(attn, Mlp(c.size("intermediate_size")))] * dense + [moe] * (layers - dense)
    return stack(c, name, architecture, hidden, stacked, tied=False)
