"""Seed-OSS: the Llama block with a bias switch of its own for the attention's output."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("SeedOssForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden = c.size("hidden_size")
    qkv_bias, out_bias = c.flag("attention_bias", True), c.flag("attention_out_bias", False)
    layer = Layer(
        attn=attention(c, hidden, kv_heads=8, head_dim=128, qkv_bias=qkv_bias, out_bias=out_bias),
        mlp=Mlp(c.size("intermediate_size"), bias=c.flag("mlp_bias", False)),
    )
    return stack(c, name, architecture, hidden, [layer] * c.layer_count(), tied=False)
