"""OPT: learned positions, ReLU MLP; the 350m has a narrower embedding and norms after each addition."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Attn, Decoder, Layer, Mlp
from chip.decoders.spelling import stack

ARCHITECTURES = ("OPTForCausalLM",)
SPARE_POSITIONS = 2  # rows of the position table that transformers adds


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden, heads = c.size("hidden_size"), c.size("num_attention_heads")
    c.divides("num_attention_heads", heads, "hidden_size", hidden)
    bias, first = c.flag("enable_bias", True), c.flag("do_layer_norm_before", True)
    layer = Layer(
        attn=Attn(heads, heads, hidden // heads, qkv_bias=bias, out_bias=bias),
        mlp=Mlp(c.size("ffn_dim"), False, c.activation("activation_function", "relu"), bias),
        norm="layer_norm",
        norm_vectors=2 if c.flag("layer_norm_elementwise_affine", True) else 0,
        placement="pre" if first else "post_add",
    )
    return stack(
        c,
        name,
        architecture,
        hidden,
        [layer] * c.layer_count(),
        tied=True,
        positions=c.size("max_position_embeddings", default=2048) + SPARE_POSITIONS,
        embed_dim=c.size("word_embed_proj_dim", default=hidden),
        final_norm=first and not c.flag("_remove_final_layer_norm", False),
    )
