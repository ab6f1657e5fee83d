"""DeepSeek V4: attention over a compressed cache, and lanes of the residual stream."""

from __future__ import annotations

from chip.decoders.compressed import CompressedAttn
from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp, Moe
from chip.decoders.extras import Extra
from chip.decoders.spelling import stack
from chip.types import ChipError

ARCHITECTURES = ("DeepseekV4ForCausalLM",)
RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
INDEXED = 4  # the ratio at which an indexer chooses among entries


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden, count = c.size("hidden_size"), c.layer_count()
    experts, inner = c.size("n_routed_experts"), c.size("moe_intermediate_size")
    shared, top = c.count("n_shared_experts", default=1) * inner, c.top_k("num_experts_per_tok", "experts", experts)
    moe = Moe(experts, top, inner, shared=Mlp(shared) if shared else None, router="biased_router", groups=1)
    lanes = c.size("hc_mult", default=4)
    layers = [Layer(_attention(c, ratio), moe, extras=(_lanes(hidden, lanes),)) for ratio in compress_ratios(c, count)]
    wide = lanes * hidden
    joined = Extra("lanes_out", ((lanes, wide),), ((wide, hidden),), vectors=lanes + 1)
    return stack(c, name, architecture, hidden, layers, False, extras=(joined,))


def compress_ratios(c: Config, count: int) -> list[int]:
    """Tokens in an entry of each layer's compressed cache; 0: it has none."""
    kinds, ratios = c.names("layer_types"), c.raw.get("compress_ratios")
    if kinds:
        unknown = next((kind for kind in kinds if kind not in RATIOS), None)
        if unknown:
            raise ChipError(f"{c.where}: layer_types has {unknown[:40]!r}, known: {', '.join(RATIOS)}")
        ratios = [RATIOS[kind] for kind in kinds]
    if not isinstance(ratios, list) or len(ratios) < count:
        listed = len(ratios) if isinstance(ratios, list) else 0
        raise ChipError(f"{c.where}: compress_ratios lists {listed} layers, but there are {count}")
    wrong = next((r for r in ratios if r not in RATIOS.values() or isinstance(r, bool)), None)
    if wrong is not None:
        raise ChipError(f"{c.where}: compress_ratios has {str(wrong)[:40]!r}, known: 0, 4, 128")
    return ratios[:count]


def _attention(c: Config, ratio: int) -> CompressedAttn:
    heads, dim = c.size("num_attention_heads"), c.size("head_dim")
    groups = c.size("o_groups", default=8)
    c.divides("o_groups", groups, "num_attention_heads", heads)
    rope = c.count("qk_rope_head_dim", default=0) or int(dim * c.number("partial_rotary_factor", 0.125))
    c.refuse_odd(rope)
    index = [c.size(f"index_{field}") for field in ("n_heads", "head_dim", "topk")] if ratio == INDEXED else [0, 0, 0]
    return CompressedAttn(
        heads, dim, rope, c.size("q_lora_rank"), groups, c.size("o_lora_rank"), c.size("sliding_window"), ratio, *index
    )


def _lanes(hidden: int, lanes: int) -> Extra:
    """Hyper-connections around both branches: the lanes are weighed into one, whose result is spread over them."""
    wide, weights = lanes * hidden, (2 + lanes) * lanes
    passes = ((wide, hidden), (wide + hidden, wide))
    return Extra("lanes", ((weights, wide),) * 2, passes * 2, vectors=2 * (weights + 3))
