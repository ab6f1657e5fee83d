"""StarCoder2: layer norms, a plain GELU MLP and grouped-query attention, all with biases."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("Starcoder2ForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden = c.size("hidden_size")
    bias = c.flag("use_bias", True)
    layer = Layer(
        attn=attention(c, hidden, kv_heads=2, window=c.window(), qkv_bias=bias, out_bias=bias),
        mlp=Mlp(c.size("intermediate_size"), False, c.activation("hidden_act", "gelu_pytorch_tanh"), bias),
        norm="layer_norm",
        norm_vectors=2,
    )
    return stack(c, name, architecture, hidden, [layer] * c.layer_count(), tied=True)
