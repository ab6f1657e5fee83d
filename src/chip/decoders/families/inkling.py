"""Inkling: short convolutions over keys, values and both branches, positions as biases of the latest tokens."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Attn, Decoder, Layer, Mlp, Moe
from chip.decoders.extras import Extra
from chip.decoders.spelling import stack
from chip.types import ChipError

ARCHITECTURES = ("InklingForCausalLM",)
SLIDES = {"hybrid": False, "hybrid_sliding": True}


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden, count = c.size("hidden_size"), c.layer_count()
    dense_inner = c.size("dense_intermediate_size", "intermediate_size")
    inner = c.size("intermediate_size" if c.has("dense_intermediate_size") else "moe_intermediate_size")
    experts = c.size("n_routed_experts")
    many = c.count("n_shared_experts", default=0)
    top = c.top_k("num_experts_per_tok", "n_routed_experts", experts)
    shared = Mlp(many * inner) if many else None
    moe = Moe(experts, top, inner, shared=shared, router="biased_router", groups=1)
    layers = []
    for slides, sparse in zip(_sliding(c, count), _sparse(c, count), strict=True):
        attn = _attention(c, slides)
        parts = [_around(c, attn, hidden, slides)]
        if sparse and many:
            parts.append(Extra("shared_scores", ((many, hidden),)))
        layers.append(Layer(attn, moe if sparse else Mlp(dense_inner), extras=tuple(parts)))
    return stack(c, name, architecture, hidden, layers, False, embed_norm=True, logit_scale=True)


def _sliding(c: Config, count: int) -> list[bool]:
    kinds = c.names("layer_types")
    if not kinds:
        chosen = set(c.indices("local_layer_ids", count)) if c.has("local_layer_ids") else None
        return [(i in chosen) if chosen is not None else bool((i + 1) % 6) for i in range(count)]
    if len(kinds) < count or set(kinds) - set(SLIDES):
        raise ChipError(f"{c.where}: layer_types must list {' or '.join(SLIDES)} for each of the {count} layers")
    return [SLIDES[kind] for kind in kinds[:count]]


def _sparse(c: Config, count: int) -> list[bool]:
    kinds = c.names("mlp_layer_types")
    if kinds and len(kinds) < count:
        raise ChipError(f"{c.where}: mlp_layer_types lists {len(kinds)} layers, but there are {count}")
    first = c.count("dense_mlp_idx", default=0)
    return [kind == "sparse" for kind in kinds[:count]] if kinds else [i >= first for i in range(count)]


def _attention(c: Config, slides: bool) -> Attn:
    own = "swa_" if slides else ""
    heads, kv_heads = c.size(own + "num_attention_heads"), c.size(own + "num_key_value_heads")
    c.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    window = c.size("sliding_window_size", "sliding_window") if slides else 0
    return Attn(heads, kv_heads, c.size(own + "head_dim"), window, qk_norm="head")


def _around(c: Config, attn: Attn, hidden: int, slides: bool) -> Extra:
    """Convolutions of keys, values and what both branches give; biases of the latest tokens from a projection."""
    wide, states = attn.heads * c.size("d_rel", default=16), attn.kv_heads * attn.head_dim
    extent = attn.window if slides else c.size("rel_extent", default=1024)
    conv = (2 * states + 2 * hidden, c.size("conv_kernel_size", "sconv_kernel_size"))
    return Extra("short_convs", ((wide, hidden),), conv=conv, vectors=c.size("d_rel", default=16) * extent)
