"""GPT-2 and GPT-BigCode (SantaCoder, StarCoder: the same block, one key/value head): learned positions, GELU MLP."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Attn, Decoder, Layer, Mlp
from chip.decoders.spelling import stack
from chip.types import ChipError

ARCHITECTURES = ("GPT2LMHeadModel", "GPTBigCodeForCausalLM")


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    if c.flag("add_cross_attention", False):
        raise ChipError(
            f"{c.where}: add_cross_attention makes a decoder that reads an encoder; those are not described"
        )
    hidden = c.size("n_embd", "hidden_size")
    heads = c.size("n_head", "num_attention_heads")
    c.divides("n_head", heads, "n_embd", hidden)
    code = architecture == "GPTBigCodeForCausalLM"
    one = code and c.flag("multi_query", True)
    activation = c.activation("activation_function", "gelu_pytorch_tanh" if code else "gelu_new")
    layer = Layer(
        attn=Attn(heads, 1 if one else heads, hidden // heads, qkv_bias=True, out_bias=True, fused_qkv=True),
        mlp=Mlp(c.size("n_inner", default=4 * hidden), False, activation, bias=True),
        norm="layer_norm",
        norm_vectors=2,
    )
    positions = c.size("n_positions", "max_position_embeddings", default=1024)
    layers = [layer] * c.layer_count("n_layer", "num_hidden_layers")
    return stack(c, name, architecture, hidden, layers, tied=True, positions=positions)
