"""GLM-4: the Llama block with joined gate and up and half-rotated heads; `Glm4` adds norms after each branch."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("GlmForCausalLM", "Glm4ForCausalLM")


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden = c.size("hidden_size")
    c.refuse_null("head_dim", "num_key_value_heads")
    bias = c.flag("attention_bias", True)
    layer = Layer(
        attn=attention(c, hidden, kv_heads=2, head_dim=128, rotary=c.rotary(0.5), qkv_bias=bias),
        mlp=Mlp(c.size("intermediate_size"), fused_gate_up=True),
        placement="sandwich" if architecture == "Glm4ForCausalLM" else "pre",
    )
    return stack(c, name, architecture, hidden, [layer] * c.layer_count(), tied=False)
