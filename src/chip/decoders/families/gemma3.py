"""Gemma 3: Gemma 2's block with normed queries and keys; five layers slide for each that sees all.

The published configs leave out what transformers takes by default, so more is optional here than elsewhere. Of the
model that also sees (Gemma3ForConditionalGeneration) this is the language part.
"""

from __future__ import annotations

from typing import Any

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    if architecture == "Gemma3ForConditionalGeneration":
        c = c.section("text_config")
    c.refuse_null("sliding_window_pattern")
    hidden, mlp = c.size("hidden_size"), Mlp(c.size("intermediate_size"), activation="gelu")
    bias, pattern = c.flag("attention_bias", False), c.size("sliding_window_pattern", default=6)
    settings: dict[str, Any] = {
        "heads": 8,
        "kv_heads": 4,
        "head_dim": 256,
        "qkv_bias": bias,
        "out_bias": bias,
        "qk_norm": "head",
    }
    layers = [
        Layer(attention(c, hidden, window=window, **settings), mlp, placement="sandwich")
        for window in c.windows(c.layer_count(), c.window(4096), lambda i: (i + 1) % pattern != 0)
    ]
    vocab = c.size("vocab_size", default=262_208)
    capped = c.has("final_logit_softcapping")
    return stack(
        c, name, architecture, hidden, layers, tied=True, vocab=vocab, embed_scale=True, logit_softcap=capped,
        angle_rows=_angle_rows(c),
    )  # fmt: skip


def _angle_rows(c: Config) -> int:
    """Of two tables: layers with a window have angles of their own; those of the others are stretched, and their table
    is longer than the context by as much."""
    stretched = c.has("rope_scaling") and isinstance(c.raw["rope_scaling"], dict)
    factor = c.section("rope_scaling").number("factor", 1.0) if stretched else 1.0
    return round(c.count("max_position_embeddings", default=0) * (1 + max(1.0, factor)))
