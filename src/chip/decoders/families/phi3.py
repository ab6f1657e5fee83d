"""Phi-3 and Phi-4: the Llama block whose checkpoint joins q, k, v and joins gate, up."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, Layer, Mlp
from chip.decoders.spelling import attention, stack

ARCHITECTURES = ("Phi3ForCausalLM",)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    hidden = c.size("hidden_size")
    layer = Layer(
        attn=attention(c, hidden, rotary=c.rotary(), window=c.window(), fused_qkv=True),
        mlp=Mlp(c.size("intermediate_size"), fused_gate_up=True),
    )
    return stack(c, name, architecture, hidden, [layer] * c.layer_count(), tied=False)
