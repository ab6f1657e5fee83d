"""Gemma: the Llama block with a gated GELU, wide heads, scaled embeddings that are also the output matrix."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("GemmaForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden = c.size("hidden_size")
    bias = c.flag("attention_bias", False)
    layer = Layer(
        attn=attention(c, hidden, kv_heads=16, head_dim=256, qkv_bias=bias, out_bias=bias),
        mlp=Mlp(c.size("intermediate_size"), activation="gelu"),
    )
    return stack(c, name, architecture, hidden, [layer] * c.layer_count(), tied=True, embed_scale=True)
