"""StableLM: layer norms around a gated SiLU MLP, a part of each head rotated."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("StableLmForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden = c.size("hidden_size")
    c = c.without("head_dim")  # which this family does not read
    qk_norm = "head" if c.flag("qk_layernorm", False) else ""
    layer = Layer(
        attn=attention(
            c,
            hidden,
            kv_heads=32,
            rotary=c.rotary(0.25),
            qkv_bias=c.flag("use_qkv_bias", False),
            qk_norm=qk_norm,
            qk_norm_per_head_weights=True,
        ),
        mlp=Mlp(c.size("intermediate_size")),
        norm="layer_norm",
        norm_vectors=2,
        placement="parallel" if c.flag("use_parallel_residual", False) else "pre",
    )
    return stack(c, name, architecture, hidden, [layer] * c.layer_count(), tied=False)
