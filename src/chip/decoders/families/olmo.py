"""OLMo: the Llama block with layer norms that have neither weight nor bias."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("OlmoForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden = c.size("hidden_size")
    bias = c.flag("attention_bias", False)
    layer = Layer(
        attn=attention(c, hidden, qkv_bias=bias, out_bias=bias),
        mlp=Mlp(c.size("intermediate_size")),
        norm="layer_norm",
        norm_vectors=0,
    )
    return stack(c, name, architecture, hidden, [layer] * c.layer_count(), tied=False)
