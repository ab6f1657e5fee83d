"""Models whose layers have a state instead of attention: Mamba, Mamba-2, gated delta nets, short convolutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chip.decoders.config import Config
from chip.decoders.decoder import Attn, Decoder, LatentAttn, Layer, Mlp, Moe
from chip.decoders.extras import Extra
from chip.decoders.families.latent import attention as latent_attention
from chip.decoders.families.latent import routed
from chip.decoders.families.standard import LAYERS, sparse_layers
from chip.decoders.mixers import delta, kimi_delta, lightning, mamba, mamba2, plamo2, short_conv
from chip.decoders.spelling import attention, stack
from chip.decoders.states import NO_MIXER
from chip.types import ChipError

NONE = Mlp(0)
LINEAR = ("linear_attention", "mamba", "conv")  # layers with a state, by what configs call them


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    return FAMILIES[architecture](c, name, architecture)


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
AFTER = ("mlp", "moe")


def _nemotron(c: Config, name: str, architecture: str) -> Decoder:
    """Each layer is one branch: a mixer and the MLP or experts that follow it are a layer here."""
    hidden, blocks = c.size("hidden_size"), _blocks(c)
    layers, places, at = list[Layer](), list[tuple[int, int]](), 0
    while at < len(blocks):
        first, (kind, inside) = at, blocks[at]
        mixer: Any = NO_MIXER
        if kind not in AFTER:
            mixer, at = _nemotron_mixer(inside, kind, hidden), at + 1
        after: Any = NONE
        if at < len(blocks) and blocks[at][0] in AFTER:
            kind, inside = blocks[at]
            bias = inside.flag("mlp_bias", False)
            after = Mlp(inside.size("intermediate_size"), False, "relu", bias) if kind == "mlp" else _latent_moe(inside)
            at += 1
        layers.append(Layer(mixer, after))
        places.append((first, at - 1))
    return stack(c, name, architecture, hidden, layers, False, places=places)


def _blocks(c: Config) -> list[tuple[str, Config]]:
    """What each layer is, and where its sizes are: a config of blocks says some for each (Nemotron-H Puzzle)."""
    listed = c.raw.get("block_configs")
    if isinstance(listed, list):
        inside = [
            Config({**c.raw, **block}, f"{c.where}: block_configs") for block in listed if isinstance(block, dict)
        ]
        kinds = [block.text("block_type", "") for block in inside]
    else:
        kinds = [BLOCKS.get(kind, kind) for kind in c.names("layers_block_type")]
        pattern = c.text("hybrid_override_pattern", "")
        if not kinds and (not pattern or set(pattern) - set(PATTERN)):
            raise ChipError(f"{c.where}: hybrid_override_pattern must be made of {' '.join(PATTERN)}")
        kinds = kinds or [PATTERN[letter] for letter in pattern]
        inside = [c] * len(kinds)
    unknown = next((kind for kind in kinds if kind not in PATTERN.values()), None)
    if unknown is not None:
        raise ChipError(f"{c.where}: a layer is {unknown[:40]!r}, known: {', '.join(PATTERN.values())}")
    count = c.count("num_hidden_layers", default=len(kinds))
    if count != len(kinds):
        raise ChipError(f"{c.where}: num_hidden_layers is {count}, but the pattern has {len(kinds)} layers")
    return list(zip(kinds, inside, strict=True))


def _nemotron_mixer(c: Config, kind: str, hidden: int) -> Any:
    if kind == "attention":
        return replace(attention(c, hidden, qkv_bias=c.flag("attention_bias", False)), rope_dim=0)
    state = mamba2(
        c, c.size("mamba_num_heads"), c.size("mamba_head_dim"), c.size("ssm_state_size"), c.size("n_groups"),
        c.size("conv_kernel", default=4), c.flag("use_conv_bias", True),
    )  # fmt: skip
    return state if c.has("mamba_ssm_cache_dtype") else replace(state, state_dtype="fp32")  # as vLLM keeps it


def _latent_moe(c: Config) -> Moe:
    """Experts may read and write a narrower input (Nemotron 3 Super)."""
    experts, inner = c.size("n_routed_experts"), c.size("moe_intermediate_size")
    shared = c.count("moe_shared_expert_intermediate_size", default=0) * c.count("n_shared_experts", default=1)
    return Moe(
        experts, c.top_k("num_experts_per_tok", "n_routed_experts", experts), inner, gated=False,
        shared=Mlp(shared, False, "relu") if shared else None, router="biased_router",
        groups=c.size("n_group", default=1), latent=c.count("moe_latent_size", default=0),
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
        attended = {i - 1 for i in c.section("linear_attn_config").indices("full_attn_layers", count + 1)}
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


def _olmo_hybrid(c: Config, name: str, architecture: str) -> Decoder:
    """Gated delta nets with norms before, attention with norms after its branches."""
    hidden, count = c.size("hidden_size"), c.layer_count()
    mlp, attn = Mlp(c.size("intermediate_size")), attention(c, hidden, qk_norm="full")
    if not c.within("rope_parameters").has("rope_theta"):
        attn = replace(attn, rope_dim=0)
    layers = [
        Layer(delta(c), mlp) if has_state else Layer(attn, mlp, placement="post") for has_state in layer_kinds(c, count)
    ]
    return stack(c, name, architecture, hidden, layers, False)


def _plamo2(c: Config, name: str, architecture: str) -> Decoder:
    hidden, count, step = c.size("hidden_size"), c.layer_count(), c.size("mamba_step", default=2)
    heads, dim = c.size("num_attention_heads"), c.size("hidden_size_per_head")
    kv_heads = c.size("num_key_value_heads", default=heads)
    c.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
    attn = Attn(heads, kv_heads, dim, rope_dim=dim, qk_norm="head", qk_norm_per_head_weights=True, fused_qkv=True)
    last_only, state = count <= step // 2, plamo2(c, hidden)
    attends = [i == count - 1 if last_only else i % step == step // 2 for i in range(count)]
    mlp = Mlp(c.size("intermediate_size"), fused_gate_up=True)
    layers = [Layer(attn if full else state, mlp, placement="sandwich") for full in attends]
    return stack(c, name, architecture, hidden, layers, True)


def _bailing_linear(c: Config, name: str, architecture: str) -> Decoder:
    """Lightning attention, and latent attention in the last layer of each group."""
    hidden, count = c.size("hidden_size"), c.layer_count()
    group, linear = c.size("layer_group_size"), lightning(c, hidden)
    shared = c.size("moe_shared_expert_intermediate_size", "moe_intermediate_size")
    many = c.count("num_shared_experts", default=0)
    moe = replace(routed(c, True), shared=Mlp(many * shared) if many else None)
    dense = Mlp(c.size("intermediate_size"))
    layers = [
        Layer(linear if (i + 1) % group else latent_attention(c), moe if sparse else dense)
        for i, sparse in enumerate(sparse_layers(c, count))
    ]
    return stack(c, name, architecture, hidden, layers, False)


def _zamba2(c: Config, name: str, architecture: str) -> Decoder:
    """Mamba-2 layers; before some stands one of a few shared blocks, over the stream beside the embedding, with
    matrices of low rank of each place's own."""
    hidden = c.size("hidden_size")
    kinds = c.names("layers_block_type")
    if not kinds or set(kinds) - {"mamba", "linear_attention", "hybrid"}:
        raise ChipError(f"{c.where}: layers_block_type must list mamba or hybrid for each layer")
    heads, many = c.size("n_mamba_heads", default=8), c.size("num_mem_blocks", default=1)
    inner = c.size("mamba_expand", default=2) * hidden
    c.divides("n_mamba_heads", heads, "mamba_expand x hidden_size", inner)
    state = mamba2(
        c, heads, inner // heads, c.size("mamba_d_state", default=64), c.size("mamba_ngroups", default=1),
        c.size("mamba_d_conv", default=4), c.flag("use_conv_bias", True),
    )  # fmt: skip
    blocks, layers = 0, list[Layer]()
    for kind in kinds:
        if kind == "hybrid":
            layers.append(replace(_zamba_block(c, hidden), again=blocks >= many))
            blocks += 1
        layers.append(Layer(state, NONE))
    return stack(c, name, architecture, hidden, layers, True)


def _zamba_block(c: Config, hidden: int) -> Layer:
    attn = replace(attention(c, 2 * hidden), in_dim=2 * hidden)
    attn = attn if c.flag("use_mem_rope", False) else replace(attn, rope_dim=0)
    inner, rank = c.size("intermediate_size", default=4 * hidden), c.size("adapter_rank", default=128)
    low = [(rank, hidden), (2 * inner, rank), (hidden, hidden)]
    if c.flag("use_shared_attention_adapter", False):
        low += [(rank, 2 * hidden), (2 * hidden, rank)] * 3
    return Layer(attn, Mlp(inner, activation="gelu", fused_gate_up=True), extras=(Extra("adapters", tuple(low)),))


FAMILIES: dict[str, Callable[[Config, str, str], Decoder]] = {
    "BailingMoeV2_5ForCausalLM": _bailing_linear,
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
    "NemotronHPuzzleForCausalLM": _nemotron,
    "OlmoHybridForCausalLM": _olmo_hybrid,
    "Plamo2ForCausalLM": _plamo2,
    "Qwen3NextForCausalLM": _qwen3_next,
    "Qwen3_5ForCausalLM": _qwen3_next,
    "Qwen3_5MoeForCausalLM": _qwen3_next,
    "Zamba2ForCausalLM": _zamba2,
}
ARCHITECTURES = tuple(FAMILIES)
