"""What config.json says of a decoder of the Llama family: Llama, Mistral, Qwen2 and Qwen3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chip.decoders.config import Config
from chip.engines.native import FAMILIES_OF as FAMILIES
from chip.types import ChipError

ROPE_TYPES = ("default", "linear", "llama3")
POSITIONS = {"llama": 2048, "mistral": 131072, "qwen2": 32768, "qwen3": 32768}  # where the config names none
KV_HEADS = {"llama": None, "mistral": 8, "qwen2": 32, "qwen3": 32}


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions. llama3 leaves high frequencies alone, divides low ones, and blends those between."""

    kind: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_positions: int = 8192

    def inverse_frequencies(self, head_dim: int) -> list[float]:
        return [self._scaled(self.theta ** (-i / head_dim)) for i in range(0, head_dim, 2)]

    def _scaled(self, frequency: float) -> float:
        if self.kind == "default":
            return frequency
        if self.kind == "linear":
            return frequency / self.factor
        turns = self.original_positions * frequency / (2 * math.pi)  # of this pair within the original context
        low, high = self.low_freq_factor, self.high_freq_factor
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        return (1 - smooth) * frequency / self.factor + smooth * frequency


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """Sizes and switches of one model."""

    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    positions: int  # tokens of the longest context
    eps: float
    rope: RopeSpec
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    eos: tuple[int, ...] = ()

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        return 2 * self.layers * self.kv_size * element_bytes


def read(raw: Mapping[str, Any], where: str) -> DecoderSpec:
    """The spec of a config; a ChipError names the field that the engine cannot serve."""
    c = Config(raw, where)
    family = _family(c)
    if c.text("hidden_act", "silu") != "silu":
        raise ChipError(f"{where}: hidden_act {c.text('hidden_act', 'silu')[:40]!r}: native computes silu alone")
    if c.rotary() != 1.0:
        raise ChipError(f"{where}: partial_rotary_factor {c.rotary():g}: native rotates whole heads alone")
    hidden, heads = c.size("hidden_size"), c.size("num_attention_heads")
    kv_heads = c.size("num_key_value_heads", default=KV_HEADS[family] or heads)
    c.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    head_dim = c.head_dim(hidden, heads, 128 if family == "qwen3" else None)
    if head_dim % 2:
        raise ChipError(f"{where}: head_dim {head_dim} is odd: rotary positions turn pairs")
    bias = family in ("llama", "qwen3") and c.flag("attention_bias", False)
    positions = c.size("max_position_embeddings", default=POSITIONS[family])
    window = _window(c, family)
    return DecoderSpec(
        family=family,
        hidden=hidden,
        intermediate=c.size("intermediate_size"),
        layers=c.layer_count(),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab=c.size("vocab_size"),
        positions=min(positions, window) if window else positions,
        eps=c.number("rms_norm_eps", 1e-6),
        rope=_rope(c, positions),
        qkv_bias=bias or family == "qwen2",
        out_bias=bias,
        mlp_bias=family == "llama" and c.flag("mlp_bias", False),
        qk_norm=family == "qwen3",
        tied=c.flag("tie_word_embeddings", False),
        eos=_eos(c),
    )


def _family(c: Config) -> str:
    named = c.names("architectures")
    by_type = {family: name for name, family in FAMILIES.items()}
    name = named[0] if named else by_type.get(c.text("model_type", ""), c.text("model_type", "") or "none")
    if name not in FAMILIES:
        raise ChipError(f"{c.where}: architecture {name[:60]!r}: native runs {', '.join(FAMILIES)}")
    return FAMILIES[name]


def _window(c: Config, family: str) -> int:
    """Tokens of a sliding window; 0: none. Within it attention is full attention, so it bounds the context here."""
    if family == "llama" or (family != "mistral" and not c.flag("use_sliding_window", False)):
        return 0
    return c.window(4096)


def _rope(c: Config, positions: int) -> RopeSpec:
    key = "rope_parameters" if c.has("rope_parameters") else "rope_scaling"
    theta = c.number("rope_theta", 10000.0)
    if not c.has(key):
        return RopeSpec(theta=_positive(c, "rope_theta", theta))
    r = c.section(key)
    kind = r.text("rope_type", r.text("type", "default"))
    if kind not in ROPE_TYPES:
        raise ChipError(f"{r.where}: rope_type {kind[:40]!r}: native knows {', '.join(ROPE_TYPES)}")
    if kind != "default" and not r.has("factor"):
        raise ChipError(f"{r.where}: field 'factor' is missing")
    low, high = r.number("low_freq_factor", 1.0), r.number("high_freq_factor", 4.0)
    if kind == "llama3" and not 0 < low < high:
        raise ChipError(f"{r.where}: low_freq_factor {low:g} must be above 0 and below high_freq_factor {high:g}")
    return RopeSpec(
        kind=kind,
        theta=_positive(r, "rope_theta", r.number("rope_theta", theta)),
        factor=_positive(r, "factor", r.number("factor", 1.0)),
        low_freq_factor=low,
        high_freq_factor=high,
        original_positions=r.size("original_max_position_embeddings", default=positions),
    )


def _positive(c: Config, name: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise ChipError(f"{c.where}: {name} must be above 0, got {value:g}")
    return value


def _eos(c: Config) -> tuple[int, ...]:
    value = c.raw.get("eos_token_id")
    tokens = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(v, int) and not isinstance(v, bool) for v in tokens):
        raise ChipError(f"{c.where}: eos_token_id must be a token or a list of tokens")
    return tuple(tokens)
