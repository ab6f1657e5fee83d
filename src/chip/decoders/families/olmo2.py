"""OLMo 2 and 3: norms after attention and MLP and over all queries and keys; in OLMo 3 three layers of four slide."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("Olmo2ForCausalLM", "Olmo3ForCausalLM")


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden, mlp = c.size("hidden_size"), Mlp(c.size("intermediate_size"))
    bias, count = c.flag("attention_bias", False), c.layer_count()
    windows = [0] * count
    if architecture == "Olmo3ForCausalLM":
        windows = c.windows(count, c.window(4096), lambda i: (i + 1) % 4 != 0)
    layers = [
        Layer(attention(c, hidden, window=w, qkv_bias=bias, out_bias=bias, qk_norm="full"), mlp, placement="post")
        for w in windows
    ]
    return stack(c, name, architecture, hidden, layers, tied=False)
