"""Models whose layers have a state instead of attention: Mamba, Mamba-2, gated delta nets, short convolutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chip.decoders.config import Config
from chip.decoders.decoder import Attn, Decoder, LatentAttn, Layer, Mlp, Moe
from chip.decoders.families.latent import attention as latent_attention
from chip.decoders.families.standard import LAYERS, sparse_layers
from chip.decoders.spelling import attention, stack
from chip.decoders.states import StateMixer
from chip.types import ChipError

NONE = Mlp(0)
LINEAR = ("linear_attention", "mamba", "conv")  # layers with a state, by what configs call them


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    return FAMILIES[architecture](c, name, architecture)


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
    return StateMixer("delta", inputs, 3 * wide, taps, heads, dim, dim, heads, wide, inner, wide + heads + dim)


def short_conv(c: Config, hidden: int) -> StateMixer:
    bias = c.flag("conv_bias", False)
    vectors = 5 * hidden if bias else 0
    taps = c.size("conv_L_cache", default=3)
    return StateMixer("conv", (("state_in", 3 * hidden),), hidden, taps, width=hidden, vectors=vectors, normed=False)


def layer_kinds(c: Config, count: int, field: str = "layer_types", every: int = 0) -> list[bool]:
    """Which layers have a state."""
    kinds = c.names(field)
    if not kinds:
        if not every:
            raise ChipError(f"{c.where}: field {field!r} is missing; it says which layers have a state")
        return [bool((i + 1) % every) for i in range(count)]
    if len(kinds) < count:
        raise ChipError(f"{c.where}: {field} lists {len(kinds)} layers, but there are {count}")
    known = (*LINEAR, "full_attention", "attention", "sliding_attention", "hybrid")
    for kind in kinds[:count]:
        if kind not in known:
            raise ChipError(f"{c.where}: {field} has {kind[:40]!r}, known: {', '.join(known)}")
    return [kind in LINEAR for kind in kinds[:count]]


def _granite(c: Config, name: str, architecture: str) -> Decoder:
    hidden, count = c.size("hidden_size"), c.layer_count()
    heads = c.size("mamba_n_heads")
    inner = c.size("mamba_expand", default=2) * hidden
    dim = inner // heads if c.raw.get("mamba_d_head", "auto") == "auto" else c.size("mamba_d_head")
    groups, bias = c.size("mamba_n_groups", default=1), c.flag("mamba_conv_bias", True)
    state = mamba2(c, heads, dim, c.size("mamba_d_state"), groups, c.size("mamba_d_conv", default=4), bias)
    rotary = c.text("position_embedding_type", "nope") == "rope"
    attn = replace(attention(c, hidden), rope_dim=attention(c, hidden).rope_dim if rotary else 0)
    shared = Mlp(c.count("shared_intermediate_size", default=0), fused_gate_up=True)
    experts = c.count("num_local_experts", default=0)
    mlp: Any = shared
    if experts:
        top = c.top_k("num_experts_per_tok", "num_local_experts", experts)
        mlp = Moe(experts, top, c.size("intermediate_size"), shared=shared if shared.intermediate else None)
    kinds = layer_kinds(c, count)
    layers = [Layer(state if has_state else attn, mlp, residual_scale=True) for has_state in kinds]
    return stack(c, name, architecture, hidden, layers, False, embed_scale=True, logit_scale=True)


PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
BLOCKS = {"linear_attention": "mamba", "full_attention": "attention"}


def _nemotron(c: Config, name: str, architecture: str) -> Decoder:
    """Each layer is one branch: a mixer and the MLP or experts that follow it are a layer here."""
    hidden = c.size("hidden_size")
    kinds = [BLOCKS.get(kind, kind) for kind in c.names("layers_block_type")]
    if not kinds:
        pattern = c.text("hybrid_override_pattern", "")
        if not pattern or set(pattern) - set(PATTERN):
            raise ChipError(f"{c.where}: hybrid_override_pattern must be made of {' '.join(PATTERN)}")
        kinds = [PATTERN[letter] for letter in pattern]
    bias = c.flag("mlp_bias", False)
    state = mamba2(
        c, c.size("mamba_num_heads"), c.size("mamba_head_dim"), c.size("ssm_state_size"), c.size("n_groups"),
        c.size("conv_kernel", default=4), c.flag("use_conv_bias", True),
    )  # fmt: skip
    attn = replace(attention(c, hidden, qkv_bias=c.flag("attention_bias", False)), rope_dim=0)
    after: dict[str, Any] = {"mlp": Mlp(c.size("intermediate_size"), False, "relu", bias)} if "mlp" in kinds else {}
    if "moe" in kinds:
        after["moe"] = _nemotron_experts(c)
    layers, at = list[Layer](), 0
    while at < len(kinds):
        if kinds[at] in after:
            raise ChipError(f"{c.where}: layer {at} is {kinds[at]} without a mixer before it, which chip does not know")
        mixer = state if kinds[at] == "mamba" else attn
        follows = kinds[at + 1] if at + 1 < len(kinds) and kinds[at + 1] in after else ""
        layers.append(Layer(mixer, after[follows] if follows else NONE))
        at += 2 if follows else 1
    return stack(c, name, architecture, hidden, layers, False)


def _nemotron_experts(c: Config) -> Moe:
    experts, inner = c.size("n_routed_experts"), c.size("moe_intermediate_size")
    shared = c.count("moe_shared_expert_intermediate_size", default=0) * c.count("n_shared_experts", default=1)
    return Moe(
        experts, c.top_k("num_experts_per_tok", "n_routed_experts", experts), inner, gated=False,
        shared=Mlp(shared, False, "relu") if shared else None, router="biased_router",
        groups=c.size("n_group", default=1),
    )  # fmt: skip


def _falcon_h1(c: Config, name: str, architecture: str) -> Decoder:
    hidden = c.size("hidden_size")
    inner = c.size("mamba_d_ssm", default=c.size("mamba_expand", default=2) * hidden)
    heads = c.size("mamba_n_heads")
    c.divides("mamba_n_heads", heads, "mamba_d_ssm", inner)
    normed, bias = c.flag("mamba_rms_norm", False), c.flag("mamba_conv_bias", True)
    groups, taps = c.size("mamba_n_groups", default=1), c.size("mamba_d_conv", default=4)
    state = mamba2(c, heads, inner // heads, c.size("mamba_d_state"), groups, taps, bias, normed)
    layer = Layer(attention(c, hidden), Mlp(c.size("intermediate_size")), beside=state)
    return stack(c, name, architecture, hidden, [layer] * c.layer_count(), False)


def _qwen3_next(c: Config, name: str, architecture: str) -> Decoder:
    hidden, count = c.size("hidden_size"), c.layer_count()
    kinds = layer_kinds(c, count, every=c.size("full_attention_interval", default=4))
    attn = attention(c, hidden, rotary=c.rotary(0.25), qk_norm="head")
    gated = replace(attn, gate=attn.heads * attn.head_dim)
    mlp: Any = None
    sparse = sparse_layers(c, count)
    dense_only = set(c.indices("mlp_only_layers", count))
    if any(sparse):
        experts, inner = c.size("num_experts"), c.size("moe_intermediate_size")
        shared = c.count("shared_expert_intermediate_size", default=0)
        top = c.top_k("num_experts_per_tok", "num_experts", experts)
        mlp = Moe(experts, top, inner, shared=Mlp(shared) if shared else None, shared_gate=bool(shared))
    layers = [
        Layer(
            delta(c) if has_state else gated, mlp if mlp and i not in dense_only else Mlp(c.size("intermediate_size"))
        )
        for i, has_state in enumerate(kinds)
    ]
    return stack(c, name, architecture, hidden, layers, False)


def _lfm2(c: Config, name: str, architecture: str) -> Decoder:
    hidden, count = c.size("hidden_size"), c.layer_count()
    attended = set(c.indices("full_attn_idxs", count))
    named = [i not in attended for i in range(count)]
    kinds = layer_kinds(c, count) if c.has("layer_types") else named
    attn, conv = attention(c, hidden, qk_norm="head"), short_conv(c, hidden)
    experts = architecture == "Lfm2MoeForCausalLM"
    dense = Mlp(c.size("intermediate_size") if experts else _lfm2_inner(c))
    first = c.count("num_dense_layers", default=2) if experts else count
    moe: Any = dense
    if experts:
        many = c.size("num_experts")
        top, inner = c.top_k("num_experts_per_tok", "num_experts", many), c.size("moe_intermediate_size")
        moe = Moe(many, top, inner, router_bias=c.flag("use_expert_bias", True))
    layers = [Layer(conv if kind else attn, dense if i < first else moe) for i, kind in enumerate(kinds)]
    return stack(c, name, architecture, hidden, layers, True)


def _lfm2_inner(c: Config) -> int:
    inner = c.size("intermediate_size", "block_ff_dim")
    if not c.flag("block_auto_adjust_ff_dim", True):
        return inner
    of = c.size("block_multiple_of", default=256)
    inner = int(c.number("block_ffn_dim_multiplier", 1.0) * int(2 * inner / 3))
    return -(-inner // of) * of


def _kimi_linear(c: Config, name: str, architecture: str) -> Decoder:
    hidden, count = c.size("hidden_size"), c.layer_count()
    said = c.raw.get("linear_attn_config")
    if isinstance(said, dict):  # layers counted from one
        attended = {i - 1 for i in said.get("full_attn_layers", []) if isinstance(i, int)}
        kinds = [i not in attended for i in range(count)]
    else:
        kinds = layer_kinds(c, count)
    experts, inner = c.size("num_experts"), c.size("moe_intermediate_size")
    shared = Mlp(c.count("num_shared_experts", default=0) * inner)
    top = c.top_k("num_experts_per_token", "num_experts", experts)
    moe = Moe(experts, top, inner, shared=shared if shared.intermediate else None, router="biased_router", groups=1)
    dense, state = Mlp(c.size("intermediate_size")), kimi_delta(c)
    attn: LatentAttn | Attn = replace(latent_attention(c), rope_dim=c.size("qk_rope_head_dim"))
    layers = [
        Layer(state if kind else attn, moe if sparse else dense) for kind, sparse in zip(kinds, sparse_layers(c, count))
    ]
    return stack(c, name, architecture, hidden, layers, False)


def _pure_mamba(c: Config, name: str, architecture: str) -> Decoder:
    hidden, count = c.size("hidden_size", "d_model"), c.layer_count(*LAYERS)
    if architecture == "Mamba2ForCausalLM":
        heads, dim = c.size("num_heads"), c.size("head_dim")
        groups, taps, bias = (
            c.size("n_groups", default=1),
            c.size("conv_kernel", default=4),
            c.flag("use_conv_bias", True),
        )
        state = mamba2(c, heads, dim, c.size("state_size"), groups, taps, bias)
    else:
        state = mamba(c, hidden, normed=False)
    tied = architecture != "FalconMambaForCausalLM"
    return stack(c, name, architecture, hidden, [Layer(state, NONE)] * count, c.flag("tie_word_embeddings", tied))


def _jamba(c: Config, name: str, architecture: str) -> Decoder:
    hidden, count = c.size("hidden_size"), c.layer_count()
    offset, period = c.count("attn_layer_offset", default=4), c.size("attn_layer_period", default=8)
    sparse_at, sparse_of = c.count("expert_layer_offset", default=1), c.size("expert_layer_period", default=2)
    state, attn = mamba(c, hidden, normed=True), replace(attention(c, hidden), rope_dim=0)
    dense, experts = Mlp(c.size("intermediate_size")), c.size("num_experts", default=1)
    moe: Any = dense
    if experts > 1:
        moe = Moe(experts, c.top_k("num_experts_per_tok", "num_experts", experts), dense.intermediate)
    layers = [
        Layer(attn if i % period == offset else state, moe if i % sparse_of == sparse_at else dense)
        for i in range(count)
    ]
    return stack(c, name, architecture, hidden, layers, False)


FAMILIES: dict[str, Callable[[Config, str, str], Decoder]] = {
    "FalconH1ForCausalLM": _falcon_h1,
    "FalconMambaForCausalLM": _pure_mamba,
    "GraniteMoeHybridForCausalLM": _granite,
    "JambaForCausalLM": _jamba,
    "KimiLinearForCausalLM": _kimi_linear,
    "Lfm2ForCausalLM": _lfm2,
    "Lfm2MoeForCausalLM": _lfm2,
    "Mamba2ForCausalLM": _pure_mamba,
    "MambaForCausalLM": _pure_mamba,
    "NemotronHForCausalLM": _nemotron,
    "Qwen3NextForCausalLM": _qwen3_next,
    "Qwen3_5ForCausalLM": _qwen3_next,
    "Qwen3_5MoeForCausalLM": _qwen3_next,
}
ARCHITECTURES = tuple(FAMILIES)
