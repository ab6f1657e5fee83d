"""SmolLM3: the Llama block; every fourth layer has no positions."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack
from chip.types import ChipError

ARCHITECTURES = ("SmolLM3ForCausalLM",)


def rotated_layers(c: Config, layers: int) -> list[bool]:
    """`no_rope_layers` holds, despite its name, a 1 for each layer that rotates."""
    rotated = c.raw.get("no_rope_layers")
    if rotated is None:
        interval = c.size("no_rope_layer_interval", default=4)
        return [(i + 1) % interval != 0 for i in range(layers)]
    if not isinstance(rotated, list) or len(rotated) != layers or any(r not in (0, 1) for r in rotated):
        raise ChipError(f"{c.where}: no_rope_layers must list 0 or 1 for each of the {layers} layers")
    return [bool(r) for r in rotated]


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden, count = c.size("hidden_size"), c.layer_count()
    bias, mlp = c.flag("attention_bias", False), Mlp(c.size("intermediate_size"), bias=c.flag("mlp_bias", False))
    rotated = rotated_layers(c, count)
    window = c.window() if c.flag("use_sliding_window", False) else 0
    windows = c.windows(count, window, lambda i: not rotated[i])
    settings = {"kv_heads": 4, "qkv_bias": bias, "out_bias": bias}
    layers = [
        Layer(attention(c, hidden, rotary=float(r), window=w, **settings), mlp)
        for r, w in zip(rotated, windows, strict=True)
    ]
    return stack(c, name, architecture, hidden, layers, tied=True)
