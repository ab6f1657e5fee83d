"""Falcon: 7B (one key/value head, both branches after one norm), 40B (grouped heads, two norms), 1B (in turn)."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Attn, Decoder, Layer, Mlp
from chip.decoders.spelling import stack
from chip.types import ChipError

ARCHITECTURES = ("FalconForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    if "head_dim" in c.raw:
        raise ChipError(f"{c.where}: head_dim cannot be set in this family: it is hidden_size over the heads")
    hidden = c.size("n_embed", "hidden_size")
    heads = c.size("num_attention_heads", "n_head")
    c.divides("num_attention_heads", heads, "hidden_size", hidden)
    new = c.flag("new_decoder_architecture", False)
    kv_heads = heads
    if new:
        kv_heads = c.size("num_kv_heads", default=heads)
        c.divides("num_kv_heads", kv_heads, "num_attention_heads", heads)
    elif c.flag("multi_query", True):
        kv_heads = 1
    placement = "pre"
    if c.flag("parallel_attn", True):
        norms = c.size("num_ln_in_parallel_attn", default=2 if new else 1)
        placement = "parallel_two" if norms == 2 else "parallel"
    bias, dim = c.flag("bias", False), hidden // heads
    rope_dim = 0 if c.flag("alibi", False) else dim
    c.refuse_odd(rope_dim)
    layer = Layer(
        attn=Attn(heads, kv_heads, dim, qkv_bias=bias, out_bias=bias, fused_qkv=True, rope_dim=rope_dim),
        mlp=Mlp(c.size("ffn_hidden_size", default=4 * hidden), False, c.activation("activation", "gelu"), bias),
        norm="layer_norm",
        norm_vectors=2,
        placement=placement,
    )
    return stack(c, name, architecture, hidden, [layer] * c.layer_count("num_hidden_layers", "n_layer"), tied=True)
