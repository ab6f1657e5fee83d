"""Phi-1 to Phi-2: attention and a GELU MLP side by side after one layer norm, biases everywhere."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("PhiForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden = c.size("hidden_size")
    qk_norm = "head" if c.flag("qk_layernorm", False) else ""
    layer = Layer(
        attn=attention(
            c, hidden, rotary=c.rotary(0.5), qkv_bias=True, out_bias=True, qk_norm=qk_norm, qk_norm_params=2
        ),
        mlp=Mlp(c.size("intermediate_size"), False, c.activation("hidden_act", "gelu_new"), bias=True),
        norm="layer_norm",
        norm_vectors=2,
        placement="parallel",
    )
    return stack(c, name, architecture, hidden, [layer] * c.layer_count(), tied=False, head_bias=True)
