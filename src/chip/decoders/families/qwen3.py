"""Qwen3: the Llama block with an RMS norm over each head's queries and keys."""

from __future__ import annotations

from typing import Any

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.families.qwen2 import qwen_windows
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("Qwen3ForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden, mlp = c.size("hidden_size"), Mlp(c.size("intermediate_size"))
    bias = c.flag("attention_bias", False)
    settings: dict[str, Any] = {"kv_heads": 32, "head_dim": 128, "qkv_bias": bias, "out_bias": bias, "qk_norm": "head"}
    layers = [Layer(attention(c, hidden, window=window, **settings), mlp) for window in qwen_windows(c)]
    return stack(c, name, architecture, hidden, layers, tied=False)
