"""Mixtral: the Llama block with a mixture of experts for its MLP."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Moe
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("MixtralForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden = c.size("hidden_size")
    experts = c.size("num_local_experts", "num_experts", default=8)
    top_k = c.top_k("num_experts_per_tok", "num_local_experts", experts, default=2)
    layer = Layer(
        attn=attention(c, hidden, kv_heads=8, window=c.window()),
        mlp=Moe(experts, top_k, c.size("intermediate_size")),
    )
    return stack(c, name, architecture, hidden, [layer] * c.layer_count(), tied=False)
