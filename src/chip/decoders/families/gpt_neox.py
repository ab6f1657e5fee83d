"""GPT-NeoX and Pythia: attention and MLP side by side, each with a layer norm of its own."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("GPTNeoXForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden = c.size("hidden_size")
    c = c.without("head_dim", "num_key_value_heads")  # this family reads neither
    bias = c.flag("attention_bias", True)
    layer = Layer(
        attn=attention(c, hidden, rotary=c.rotary(0.25, "rotary_pct"), qkv_bias=bias, out_bias=bias, fused_qkv=True),
        mlp=Mlp(c.size("intermediate_size"), False, c.activation("hidden_act", "gelu"), bias=True),
        norm="layer_norm",
        norm_vectors=2,
        placement="parallel_two" if c.flag("use_parallel_residual", True) else "pre",
    )
    return stack(c, name, architecture, hidden, [layer] * c.layer_count(), tied=False)
