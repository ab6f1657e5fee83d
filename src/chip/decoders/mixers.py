"""Mixers with a state, by the names that configs have for their sizes."""

from __future__ import annotations

from chip.decoders.config import Config
from chip.decoders.states import StateMixer


def mamba2(
    c: Config, heads: int, head_dim: int, state: int, groups: int, taps: int, bias: bool, normed: bool = True
) -> StateMixer:
    """Mamba-2 (SSD). One projection gives gates, values, keys, queries and steps."""
    inner = heads * head_dim
    channels = inner + 2 * groups * state
    vectors = 3 * heads + (channels if bias else 0) + (inner if normed else 0)
    kept = c.text("mamba_ssm_cache_dtype", "") or c.text("mamba_ssm_dtype", "")
    return StateMixer(
        "mamba2", (("state_in", 2 * inner + 2 * groups * state + heads),), channels, taps, heads, head_dim, state,
        groups, inner, vectors=vectors, normed=normed, state_dtype="fp32" if kept == "float32" else "",
    )  # fmt: skip


def mamba(c: Config, hidden: int, normed: bool) -> StateMixer:
    """Mamba-1: every channel has a state of its own. `normed`: steps, keys and queries have norms with weights."""
    state = c.size("state_size", "mamba_d_state", default=16)
    inner = c.size("intermediate_size" if c.has("state_size") else "mamba_expand", default=2 * hidden)
    inner = inner if c.has("state_size") else inner * hidden
    rank = _rank(c, hidden)
    taps = c.size("conv_kernel", "mamba_d_conv", default=4)
    bias = c.flag("use_conv_bias" if c.has("use_conv_bias") else "mamba_conv_bias", True)
    inside = (("state_x", rank + 2 * state, inner), ("state_dt", inner, rank))
    vectors = inner * (state + 2) + (inner if bias else 0) + (rank + 2 * state if normed else 0)
    return StateMixer(
        "mamba", (("state_in", 2 * inner),), inner, taps, inner, 1, state, 1, inner, inside, vectors, False
    )


def _rank(c: Config, hidden: int) -> int:
    field = "time_step_rank" if c.has("time_step_rank") else "mamba_dt_rank"
    return -(-hidden // 16) if c.raw.get(field, "auto") == "auto" else c.size(field)


def delta(c: Config) -> StateMixer:
    """A gated delta net, by Qwen3-Next's names."""
    key_heads, value_heads = c.size("linear_num_key_heads"), c.size("linear_num_value_heads")
    key_dim, value_dim = c.size("linear_key_head_dim"), c.size("linear_value_head_dim")
    c.divides("linear_num_key_heads", key_heads, "linear_num_value_heads", value_heads)
    keys, values = key_heads * key_dim, value_heads * value_dim
    kept = "fp32" if c.text("mamba_ssm_dtype", "") == "float32" else ""
    return StateMixer(
        "delta", (("state_qkvz", 2 * keys + 2 * values), ("state_ba", 2 * value_heads)), 2 * keys + values,
        c.size("linear_conv_kernel_dim", default=4), value_heads, value_dim, key_dim, key_heads, values,
        vectors=2 * value_heads + value_dim, state_dtype=kept,
    )  # fmt: skip


def kimi_delta(c: Config) -> StateMixer:
    """Kimi's delta attention: a gate for each key's value, through a low rank."""
    inside = Config(c.raw.get("linear_attn_config", c.raw), c.where)
    heads, dim = inside.size("linear_num_heads", "num_heads"), inside.size("linear_head_dim", "head_dim")
    taps = inside.size("linear_conv_kernel_dim", "short_conv_kernel_size", default=4)
    wide = heads * dim
    inputs = (("state_qkvz", 3 * wide), ("state_ba", heads + 2 * dim))
    inner = (("state_x", wide, dim), ("state_dt", wide, dim))
    vectors = wide + heads + dim
    return StateMixer("delta", inputs, 3 * wide, taps, heads, dim, dim, heads, wide, inner, vectors, state_dtype="fp32")


def short_conv(c: Config, hidden: int) -> StateMixer:
    bias = c.flag("conv_bias", False)
    vectors = 5 * hidden if bias else 0
    taps = c.size("conv_L_cache", default=3)
    return StateMixer("conv", (("state_in", 3 * hidden),), hidden, taps, width=hidden, vectors=vectors, normed=False)


def lightning(c: Config, hidden: int) -> StateMixer:
    """Linear attention with a fixed decay for each head, and a gate (Ring and Ling 2.5)."""
    heads = c.size("num_attention_heads")
    dim = c.head_dim(hidden, heads)
    wide = heads * dim
    norms = wide + (2 * dim if c.flag("use_qk_norm", False) else 0)
    inputs = (("state_qkvz", 3 * wide), ("state_gate", wide))
    return StateMixer("linear", inputs, 0, 0, heads, dim, dim, heads, wide, vectors=norms)


def plamo2(c: Config, hidden: int) -> StateMixer:
    """Mamba-2's heads, whose steps, keys and queries come from the convolved input, as in Mamba."""
    heads, dim, state = c.size("mamba_num_heads"), c.size("hidden_size_per_head"), c.size("mamba_d_state", default=64)
    inner, rank = heads * dim, max(64, hidden // 16)
    inside = (("state_x", rank + 2 * state, inner), ("state_dt", heads, rank))
    return StateMixer(
        "mamba2", (("state_in", 2 * inner),), inner, c.size("mamba_d_conv", default=4), heads, dim, state, 1, inner,
        inside, 3 * heads + rank + 2 * state, False,
    )  # fmt: skip
