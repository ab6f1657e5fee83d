"""Models that run the same layers several times: Ouro, LoopCoder and HRM. Each round has a cache of its own."""

from __future__ import annotations

from dataclasses import replace

from chip.decoders.config import Config
from chip.decoders.decoder import Attn, Decoder, Layer, Mlp
from chip.decoders.extras import Extra
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("HrmTextForCausalLM", "IQuestLoopCoderForCausalLM", "OuroForCausalLM")


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    return {"H": _hrm, "I": _loop_coder, "O": _ouro}[architecture[0]](c, name, architecture)


def _ouro(c: Config, name: str, architecture: str) -> Decoder:
    hidden, rounds = c.size("hidden_size"), c.size("total_ut_steps", default=4)
    layer = Layer(attention(c, hidden), Mlp(c.size("intermediate_size")), placement="sandwich")
    stacked = [layer] * c.layer_count()
    again = [replace(layer, again=True)] * ((rounds - 1) * len(stacked))
    between = Extra("round_norm", passes=((hidden, hidden),) * (rounds - 1), vectors=hidden + 1)  # and the exit's gate
    return stack(c, name, architecture, hidden, stacked + again, False, extras=(between,))


def _loop_coder(c: Config, name: str, architecture: str) -> Decoder:
    """Later rounds attend to the whole cache of the first, and to a window of their own; a gate weighs the two."""
    hidden, rounds = c.size("hidden_size"), c.size("loop_num", default=2)
    attn, mlp = attention(c, hidden), Mlp(c.size("intermediate_size"))
    stacked = [
        Layer(attn, mlp, extras=(Extra("loop_gate", vectors=attn.heads * (attn.head_dim + 1)),))
    ] * c.layer_count()
    local = replace(attn, source="both", window=c.size("loop_window_size", default=64))
    gate = Extra("loop_gate", passes=((attn.heads * attn.head_dim, attn.heads * attn.heads),))
    again = [Layer(local, mlp, extras=(gate,), again=True)] * ((rounds - 1) * len(stacked))
    return stack(c, name, architecture, hidden, stacked + again, False)


def _hrm(c: Config, name: str, architecture: str) -> Decoder:
    """Two stacks in turn: the low one several times, then the high one; norms have no weights."""
    hidden, high, low = c.size("hidden_size"), c.size("H_cycles", default=2), c.size("L_cycles", default=3)
    heads, bias = c.size("num_attention_heads"), c.flag("attention_bias", False)
    dim = c.head_dim(hidden, heads)
    attn = Attn(heads, heads, dim, qkv_bias=bias, out_bias=bias, rope_dim=dim, gate=heads * dim)
    layer = Layer(attn, Mlp(c.size("intermediate_size"), bias=c.flag("mlp_bias", False)), norm_vectors=0)
    of_stack = c.layer_count("num_layers_per_stack", "num_hidden_layers")
    again = [replace(layer, again=True)] * (of_stack * (high * (low + 1) - 2))
    start = Extra("start", passes=((hidden, hidden),) * (high * (low + 1)), vectors=hidden)  # and a norm a round
    return stack(
        c, name, architecture, hidden, [layer] * 2 * of_stack + again, False, embed_scale=True, extras=(start,)
    )
