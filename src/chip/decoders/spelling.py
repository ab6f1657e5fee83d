"""How most HF configs spell a model: the names of their sizes, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from chip.decoders import quantization
from chip.decoders.config import Config
from chip.decoders.decoder import Attn, Decoder, Layer, grouped
from chip.decoders.formats import UNIFORM, WeightFormat
from chip.decoders.quantization_methods import SECTIONS, read

CONTEXT = (
    *(
        "max_position_embeddings",
        "n_positions",
        "max_position_embedding",
        "model_max_length",
        "seq_length",
        "max_seq_len",
    ),
)
DRAFTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")


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
    """The model around its layers. `tied` is what transformers takes where the config does not say; `places` as in
    `format_layers`."""
    layers = list(layers)
    places = settings.pop("places", ())
    found = read(c) if any(c.has(section) or c.root.has(section) for section in SECTIONS) else None
    if found:
        found = found.shortened()
        layers = quantization.format_layers(found, layers, hidden, architecture, places)
        settings = {
            "quantization": found.method,
            "kv_dtype": found.kv,
            "head_format": quantization.head_format(found, architecture),
            "dtype": _dtype(layers, hidden),
            **settings,
        }
    return Decoder(
        name,
        architecture,
        hidden,
        settings.pop("vocab", None) or c.size("vocab_size"),
        grouped(layers),
        tied=c.flag("tie_word_embeddings", tied),
        max_context=c.count(*CONTEXT, default=0),
        drafts=c.count(*DRAFTS, default=0),
        **settings,
    )


def _dtype(layers: list[Layer], hidden: int) -> str:
    """The `--dtype` that most of the quantised weights are nearest to."""
    weights: dict[tuple[str, str], float] = {}
    for layer in layers:
        formats = dict(layer.formats)
        for m in layer.matrices(hidden):
            found: WeightFormat | None = formats.get(m.role)
            if found:
                key = (found.dtype, found.input)
                weights[key] = weights.get(key, 0.0) + m.copies * m.n * m.k
    stored, rounded = max(weights, key=weights.__getitem__)
    near = [name for name, f in UNIFORM.items() if (f.dtype, f.input) == (stored, rounded)]
    return (near or [name for name, f in UNIFORM.items() if f.dtype == stored])[0]
