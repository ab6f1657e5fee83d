"""Qwen2-MoE: Qwen2 with routed experts beside a gated shared expert; chosen layers keep a dense MLP."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp, Moe
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("Qwen2MoeForCausalLM",)


def sparse_layers(c: Config) -> list[bool]:
    """Which layers have experts: every `decoder_sparse_step`-th, less those in `mlp_only_layers`."""
    layers, step = c.layer_count(), c.size("decoder_sparse_step", default=1)
    dense = set(c.indices("mlp_only_layers", layers))
    return [i not in dense and (i + 1) % step == 0 for i in range(layers)]


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    c.refuse_null("num_key_value_heads")
    hidden = c.size("hidden_size")
    experts = c.size("num_experts", default=60)
    moe = Moe(
        experts,
        c.top_k("num_experts_per_tok", "num_experts", experts, default=4),
        c.size("moe_intermediate_size", default=1408),
        shared=Mlp(c.size("shared_expert_intermediate_size", default=5632)),
        shared_gate=True,
    )
    sparse = sparse_layers(c)
    window = c.window(4096) if c.flag("use_sliding_window", False) else 0
    last = c.count("max_window_layers", default=28)
    windows = c.windows(len(sparse), window, lambda i: i % 2 == 0 and i < last)
    mlps = [moe if s else Mlp(c.size("intermediate_size")) for s in sparse]
    bias = c.flag("qkv_bias", True)
    layers = [
        Layer(attention(c, hidden, kv_heads=16, window=w, qkv_bias=bias), m) for w, m in zip(windows, mlps, strict=True)
    ]
    return stack(c, name, architecture, hidden, layers, tied=False)
