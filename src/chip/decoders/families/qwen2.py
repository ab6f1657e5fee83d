"""Qwen2 and Qwen2.5: the Llama block with biases on q, k and v; the upper layers may slide."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("Qwen2ForCausalLM",)


def qwen_windows(c: Config) -> list[int]:
    """Layers from `max_window_layers` on slide, if sliding is switched on at all."""
    window = c.window(4096) if c.flag("use_sliding_window", False) else 0
    first = c.count("max_window_layers", default=28)
    return c.windows(c.layer_count(), window, lambda i: i >= first)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden, mlp = c.size("hidden_size"), Mlp(c.size("intermediate_size"))
    layers = [Layer(attention(c, hidden, kv_heads=32, window=window, qkv_bias=True), mlp) for window in qwen_windows(c)]
    return stack(c, name, architecture, hidden, layers, tied=False)
