"""Gemma 3n and 4: embeddings of each layer's own, layers that read the cache of earlier ones, keys that are values,
experts beside the MLP; in Gemma 3n, lanes of the residual stream that a layer updates in turn."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Attn, Decoder, Layer, Mlp, Moe
from chip.decoders.extras import Extra, norm_and_add
from chip.decoders.spelling import stack
from chip.types import ChipError

ARCHITECTURES = ("Gemma3nForCausalLM", "Gemma4ForCausalLM")
LANES, LAUREL_RANK = 4, 64  # of Gemma 3n, where its config does not say


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden, count = c.size("hidden_size"), c.layer_count()
    third = architecture == "Gemma3nForCausalLM"
    windows = c.windows(count, c.window(512), lambda i: bool((i + 1) % (5 if third else 6)))
    shared_from = count - c.count("num_kv_shared_layers", default=15 if third else 0)
    if shared_from <= 0:
        raise ChipError(f"{c.where}: num_kv_shared_layers leaves none of the {count} layers a cache of its own")
    width = c.count("hidden_size_per_layer_input", default=256 if third else 0)
    parts = (_per_layer(hidden, width),) if width else ()
    layers = []
    for i, window in enumerate(windows):
        attn = _attention(c, i, window, i >= shared_from)
        mlp = Mlp(_inner(c, i, i >= shared_from), activation="gelu")
        more, both = _experts(c, hidden, mlp)
        beside = (*parts, *more, *(_lanes(c, hidden, mlp.intermediate) if third else ()))
        layers.append(Layer(attn, both, placement="sandwich", extras=beside))
    around = [_tables(c, hidden, count * width)] if width else []
    if third:
        lanes = c.size("altup_num_inputs", default=LANES) - 1
        around.append(Extra("lanes", ((hidden, hidden),) * 2 * lanes, (((lanes + 1) * hidden, lanes * hidden),) * 2))
    return stack(
        c, name, architecture, hidden, layers, True, vocab=c.size("vocab_size", default=262_144), embed_scale=True,
        logit_softcap=c.has("final_logit_softcapping"), extras=tuple(around),
        angle_rows=2 * c.count("max_position_embeddings", default=0),
    )  # fmt: skip


def _attention(c: Config, i: int, window: int, shared: bool) -> Attn:
    """Layers that see all have wider heads of their own, and their values may be their keys (Gemma 4)."""
    heads, kv_heads = c.size("num_attention_heads", default=8), c.size("num_key_value_heads", default=2)
    dim, tied, rotary = c.size("head_dim", default=256), False, 1.0
    if not window:
        listed = c.within("per_layer_config").raw  # by the layer's index, which may begin with zeros
        own = next((sizes for layer, sizes in listed.items() if layer.lstrip("0") == str(i)), c.raw)
        sizes = Config(own, c.where)
        dim = sizes.size("global_head_dim", "head_dim", default=dim)
        tied = c.flag("attention_k_eq_v", False)
        if tied or own is not c.raw:
            kv_heads = sizes.size("num_global_key_value_heads", "num_key_value_heads", default=kv_heads)
        rotary = c.within("rope_parameters").within("full_attention").number("partial_rotary_factor", 1.0)
    c.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    bias = c.flag("attention_bias", False)
    source = "shared" if shared else "tied" if tied else ""
    return Attn(heads, kv_heads, dim, window, bias, bias, rope_dim=int(dim * rotary), qk_norm="head", source=source)


def _inner(c: Config, i: int, shared: bool) -> int:
    inner = c.raw.get("intermediate_size")
    if isinstance(inner, list):
        if i >= len(inner):
            raise ChipError(f"{c.where}: intermediate_size lists {len(inner)} layers, but there are more")
        return Config({"intermediate_size": inner[i]}, c.where).size("intermediate_size")
    return c.size("intermediate_size") * (2 if shared and c.flag("use_double_wide_mlp", False) else 1)


def _experts(c: Config, hidden: int, mlp: Mlp) -> tuple[tuple[Extra, ...], Mlp | Moe]:
    """Routed experts beside the MLP: both are normed before they are added, and the router's input is normed."""
    if not c.flag("enable_moe_block", False):
        return (), mlp
    experts = c.size("num_experts")
    top = c.top_k("top_k_experts", "num_experts", experts)
    norms = Extra("expert_norms", passes=((hidden, hidden),) * 4, vectors=4 * hidden + experts)
    return (norms,), Moe(experts, top, c.size("moe_intermediate_size"), shared=mlp)


def _per_layer(hidden: int, width: int) -> Extra:
    """A gate of the residual stream times the layer's own embedding of the token, projected back and normed."""
    passes = ((2 * width, width), *norm_and_add(hidden))
    return Extra("per_layer", ((width, hidden), (hidden, width)), passes, vectors=hidden)


def _tables(c: Config, hidden: int, wide: int) -> Extra:
    """The embeddings of all layers, and their projection from the first one."""
    rows = c.size("vocab_size_per_layer_input", default=262_144)
    width = c.count("hidden_size_per_layer_input", default=256)
    return Extra("per_layer_embed", ((wide, hidden),), ((wide, wide), (2 * wide, wide)), (0, 0), (rows, wide), width)


def _lanes(c: Config, hidden: int, inner: int) -> tuple[Extra, ...]:
    """Alternating updates: all lanes are predicted before the layer and corrected after it. Beside the attention stands
    a branch of low rank; the inside of some MLPs is cut off below a quantile."""
    n, rank = c.size("altup_num_inputs", default=LANES), c.size("laurel_rank", default=LAUREL_RANK)
    lane = Extra(
        "lanes", ((n, hidden), (n * n, n), (n, n)),
        ((hidden, hidden), (n * hidden, n * hidden), (2 * hidden, hidden), ((n + 1) * hidden, n * hidden)),
        vectors=2 * hidden,
    )  # fmt: skip
    laurel = Extra("laurel", ((rank, hidden), (hidden, rank)), norm_and_add(hidden), vectors=hidden)
    return lane, laurel, Extra("sparsity", passes=((inner, 1), (inner, inner)))
