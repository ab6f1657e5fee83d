"""Llama's layers after a search (Nemotron NAS, DeciLM): each has its own heads and MLP, some have no attention or no
MLP."""

from __future__ import annotations

from typing import Any

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack
from chip.decoders.states import NO_MIXER
from chip.types import ChipError

ARCHITECTURES = ("DeciLMForCausalLM",)
MULTIPLE = 256  # that an inner size is rounded up to


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden, count, blocks = c.size("hidden_size"), c.layer_count(), c.raw.get("block_configs")
    if not isinstance(blocks, list) or len(blocks) != count:
        raise ChipError(f"{c.where}: block_configs must describe each of the {count} layers")
    layers = [_layer(c, Config(block, f"{c.where}: block_configs"), hidden) for block in blocks]
    return stack(c, name, architecture, hidden, [layer for layer in layers if layer], False)


def _layer(c: Config, block: Config, hidden: int) -> Layer | None:
    attn, ffn = block.section("attention"), block.section("ffn")
    for part in (attn, ffn):
        if part.raw.get("replace_with_linear"):
            raise ChipError(f"{part.where}: replace_with_linear is not described; vLLM does not run it either")
    mixer: Any = NO_MIXER
    if not attn.flag("no_op", False):
        heads, group = c.size("num_attention_heads"), attn.size("n_heads_in_group")
        attn.divides("n_heads_in_group", group, "num_attention_heads", heads)
        bias = c.flag("attention_bias", False)
        own = Config({**c.raw, "num_key_value_heads": heads // group}, c.where)
        mixer = attention(own, hidden, qkv_bias=bias, out_bias=bias)
    mlp = Mlp(0 if ffn.flag("no_op", False) else _inner(ffn, hidden), bias=c.flag("mlp_bias", False))
    return Layer(mixer, mlp) if mixer is not NO_MIXER or mlp.intermediate else None


def _inner(ffn: Config, hidden: int) -> int:
    if not ffn.has("ffn_mult"):
        return ffn.size("intermediate_size")
    return -(-int(2 * ffn.number("ffn_mult", 1.0) * hidden / 3) // MULTIPLE) * MULTIPLE
