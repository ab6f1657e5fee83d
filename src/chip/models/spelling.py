"""How most HF configs spell a model: the names of their sizes, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from chip.models.config import Config
from chip.models.decoder import Attn, Decoder, Layer, grouped


def attention(
    c: Config,
    hidden: int,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    rotary: float = 1.0,
    **settings: Any,
) -> Attn:
    """Attention by its usual names. `heads`, `kv_heads` and `head_dim` are what transformers takes where absent."""
    heads = c.size("num_attention_heads", "n_head", default=heads)
    if kv_heads is None or not c.omits("num_key_value_heads"):
        kv_heads = heads
    kv_heads = c.size("num_key_value_heads", default=kv_heads)
    c.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    dim = c.head_dim(hidden, heads, head_dim)
    rotated = int(dim * rotary)
    c.refuse_odd(rotated)
    return Attn(heads, kv_heads, dim, **{"rope_dim": rotated, **settings})


def stack(
    c: Config, name: str, architecture: str, hidden: int, layers: Iterable[Layer], tied: bool, **settings: Any
) -> Decoder:
    """The model around its layers. `tied` is what transformers takes where the config does not say."""
    return Decoder(
        name,
        architecture,
        hidden,
        settings.pop("vocab", None) or c.size("vocab_size"),
        grouped(layers),
        tied=c.flag("tie_word_embeddings", tied),
        max_context=c.count("max_position_embeddings", "n_positions", default=0),
        **settings,
    )
