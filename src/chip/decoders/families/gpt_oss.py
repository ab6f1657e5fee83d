"""gpt-oss: experts with biases, attention with learned sinks, every other layer slides."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Moe
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("GptOssForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden = c.size("hidden_size")
    bias = c.flag("attention_bias", True)
    experts = c.size("num_local_experts", "num_experts", default=128)
    top_k = c.top_k("num_experts_per_tok", "num_local_experts", experts, default=4)
    moe = Moe(experts, top_k, c.size("intermediate_size"), bias=True, router_bias=True)
    settings = {"kv_heads": 8, "head_dim": 64, "qkv_bias": bias, "out_bias": bias, "sinks": True}
    layers = [
        Layer(attention(c, hidden, window=window, **settings), moe)
        for window in c.windows(c.layer_count(), c.window(128), lambda i: i % 2 == 0)
    ]
    return stack(c, name, architecture, hidden, layers, tied=False)
