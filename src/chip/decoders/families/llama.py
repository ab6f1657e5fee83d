"""Llama and what shares its block: RMS norms, rotary positions, gated SiLU MLP, optional sliding window."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "GraniteForCausalLM")


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden = c.size("hidden_size")
    mistral, granite = architecture == "MistralForCausalLM", architecture == "GraniteForCausalLM"
    bias = not mistral and c.flag("attention_bias", False)
    window = c.window(4096) if mistral else 0
    kv_heads = 8 if mistral else None
    layer = Layer(
        attn=attention(c, hidden, kv_heads=kv_heads, window=window, qkv_bias=bias, out_bias=bias),
        mlp=Mlp(c.size("intermediate_size"), bias=not mistral and c.flag("mlp_bias", False)),
        residual_scale=granite,
    )
    layers = [layer] * c.layer_count()
    return stack(c, name, architecture, hidden, layers, tied=False, embed_scale=granite, logit_scale=granite)
