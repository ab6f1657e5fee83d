"""GPT-J: attention and a GELU MLP side by side after one layer norm; biases in the MLP and the output only."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Attn, Decoder, Layer, Mlp
from chip.decoders.spelling import stack

ARCHITECTURES = ("GPTJForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden = c.size("n_embd", "hidden_size")
    heads = c.size("n_head", "num_attention_heads")
    c.divides("n_head", heads, "n_embd", hidden)
    layer = Layer(
        attn=Attn(heads, heads, hidden // heads, rope_dim=c.size("rotary_dim", default=64)),
        mlp=Mlp(
            c.size("n_inner", default=4 * hidden), False, c.activation("activation_function", "gelu_new"), bias=True
        ),
        norm="layer_norm",
        norm_vectors=2,
        placement="parallel",
    )
    layers = [layer] * c.layer_count("n_layer", "num_hidden_layers")
    return stack(c, name, architecture, hidden, layers, tied=False, head_bias=True)
