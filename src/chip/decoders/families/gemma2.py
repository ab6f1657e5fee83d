"""Gemma 2: norms before and after attention and MLP, every other layer slides, logits are capped."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("Gemma2ForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden, mlp = c.size("hidden_size"), Mlp(c.size("intermediate_size"), activation="gelu")
    bias = c.flag("attention_bias", False)
    settings = {"kv_heads": 4, "head_dim": 256, "qkv_bias": bias, "out_bias": bias}
    layers = [
        Layer(attention(c, hidden, window=window, **settings), mlp, placement="sandwich")
        for window in c.windows(c.layer_count(), c.window(4096), lambda i: i % 2 == 0)
    ]
    capped = c.omits("final_logit_softcapping") or c.has("final_logit_softcapping")
    return stack(c, name, architecture, hidden, layers, tied=True, embed_scale=True, logit_softcap=capped)
