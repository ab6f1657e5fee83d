"""Command R and its successor (Cohere2, where three layers of four slide and the fourth has no positions)."""

from __future__ import annotations

from typing import Any

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("CohereForCausalLM", "Cohere2ForCausalLM")


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden, count = c.size("hidden_size"), c.layer_count()
    second = architecture == "Cohere2ForCausalLM"
    windows = [0] * count
    if second:
        c.refuse_null("sliding_window_pattern")
        pattern = c.size("sliding_window_pattern", default=4)
        windows = c.windows(count, c.window(4096), lambda i: (i + 1) % pattern != 0)
    bias = c.flag("attention_bias", False)
    settings: dict[str, Any] = {"qkv_bias": bias, "out_bias": bias, "qk_norm_per_head_weights": True}
    settings["qk_norm"] = "head" if not second and c.flag("use_qk_norm", False) else ""
    mlp = Mlp(c.size("intermediate_size"))
    layers = [
        Layer(
            attention(c, hidden, rotary=0.0 if second and not window else 1.0, window=window, **settings),
            mlp,
            norm="layer_norm",
            placement="parallel",
        )
        for window in windows
    ]
    return stack(c, name, architecture, hidden, layers, tied=True, logit_scale=True)
