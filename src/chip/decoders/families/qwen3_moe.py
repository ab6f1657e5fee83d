"""Qwen3-MoE: Qwen3 with routed experts, no shared one."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp, Moe
from chip.decoders.families.qwen2_moe import sparse_layers
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("Qwen3MoeForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    c.refuse_null("head_dim")
    hidden = c.size("hidden_size")
    experts = c.size("num_experts", "num_local_experts", default=128)
    top_k = c.top_k("num_experts_per_tok", "num_experts", experts, default=8)
    moe = Moe(experts, top_k, c.size("moe_intermediate_size", default=768))
    bias = c.flag("attention_bias", False)
    window = c.window(4096) if c.flag("use_sliding_window", False) else 0
    attn = attention(c, hidden, kv_heads=4, window=window, qkv_bias=bias, out_bias=bias, qk_norm="head")
    layers = [Layer(attn, moe if sparse else Mlp(c.size("intermediate_size"))) for sparse in sparse_layers(c)]
    return stack(c, name, architecture, hidden, layers, tied=False)
