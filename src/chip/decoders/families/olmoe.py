"""OLMoE: the Llama block with norms over all queries and keys and a mixture of experts."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Moe
from chip.decoders.spelling import attention, stack
from chip.types import ChipError

ARCHITECTURES = ("OlmoeForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden = c.size("hidden_size")
    bias = c.flag("attention_bias", False)
    experts = c.size("num_experts", default=64)
    attn = attention(c, hidden, qkv_bias=bias, out_bias=bias, qk_norm="full")
    if attn.heads * attn.head_dim != hidden:  # its norms are as wide as the model
        raise ChipError(f"{c.where}: head_dim must be hidden_size / num_attention_heads, got {attn.head_dim}")
    layer = Layer(
        attn=attn,
        mlp=Moe(
            experts, c.top_k("num_experts_per_tok", "num_experts", experts, default=8), c.size("intermediate_size")
        ),
    )
    return stack(c, name, architecture, hidden, [layer] * c.layer_count(), tied=False)
