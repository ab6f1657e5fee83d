"""BLOOM: ALiBi instead of positions, a normed embedding, one matrix for q, k and v, biases everywhere."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Attn, Decoder, Layer, Mlp
from chip.decoders.spelling import stack

ARCHITECTURES = ("BloomForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden = c.size("n_embed", "hidden_size")
    heads = c.size("n_head", "num_attention_heads")
    c.divides("n_head", heads, "hidden_size", hidden)
    layer = Layer(
        attn=Attn(heads, heads, hidden // heads, qkv_bias=True, out_bias=True, fused_qkv=True),
        mlp=Mlp(4 * hidden, False, "gelu_fast", bias=True),
        norm="layer_norm",
        norm_vectors=2,
    )
    layers = [layer] * c.layer_count("n_layer", "num_hidden_layers")
    return stack(c, name, architecture, hidden, layers, tied=True, embed_norm=True)
