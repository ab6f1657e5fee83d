"""Architectures whose layers are grouped-query attention beside an MLP or routed experts, one row each: what a config
does not say of its model. Sizes are read under every name that published configs have for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from chip.decoders.config import Config
from chip.decoders.decoder import Attn, Decoder, Layer, Mlp, Moe
from chip.decoders.extras import Extra
from chip.decoders.spelling import stack
from chip.types import ChipError

HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = (
    *("num_key_value_heads", "num_attention_groups", "num_query_groups", "multi_query_group_num", "n_head_kv"),
    "kv_n_heads",
)
LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer")
INNER = ("intermediate_size", "ffn_hidden_size", "d_ff")
DENSE_INNER = ("intermediate_size_mlp", "dense_intermediate_size", *INNER)
WITHIN = ("attn_config", "ffn_config")  # sections whose fields are read as the model's own (DBRX, MPT)
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "moe_topk", "moe_k", "moe_top_k", "num_experts_per_token")
EXPERT_INNER = ("moe_intermediate_size", "expert_ffn_hidden_size", *INNER)
SHARED_INNER = ("shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim")
SHARED_COUNT = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
DENSE_FIRST = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
SLIDING = ("sliding_attention", "chunked_attention", "local_attention")
KINDS = ("full_attention", "attention", *SLIDING)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the model class fixes. A text names the config's field that decides, False where it is absent."""

    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = "attention_bias"
    qk_norm: str = ""  # as `Attn.qk_norm`
    qk_norm_if: str = ""  # the field that says whether; "": always
    gate: str = ""  # of the attention's output: "value" each value, "head" each head
    gated: bool = True  # the MLP
    activation: str = "silu"  # where the config names none
    mlp_bias: bool | str = "mlp_bias"
    norm: str = "rms_norm"
    norm_vectors: int = 1
    placement: str = "pre"
    residual_scale: bool = False
    rotary: float = 1.0  # of each head, where the config does not say; 0: none is
    kv_heads: int = 0  # where the config does not say; 0: as many as there are heads
    chunked: bool = False  # layers do not slide but see their chunk
    sinks: bool = False  # of layers that slide
    full_every: int = 0  # layers that see all, where `layer_types` is absent: each of so many; 0: all do
    unrotated: bool = False  # layers that see all, beside others that slide, have no positions
    router_bias: bool = False
    shared: int = 0  # experts that every token uses, where the config does not count them
    dense_beside: bool = False  # every token goes through the dense MLP too, beside the experts (Arctic)
    tied: bool = False
    decoder: Mapping[str, Any] | None = None  # of `Decoder`


LLAMA = Facts()
BARE = Facts(qkv_bias=False, out_bias=False, mlp_bias=False)
SCALED = {"embed_scale": True, "logit_scale": True}
ROWS: Mapping[str, Facts] = {
    "AfmoeForCausalLM": Facts(
        qk_norm="head", gate="value", placement="sandwich", full_every=4, unrotated=True, router_bias=True
    ),
    "ApertusForCausalLM": Facts(qk_norm="head", gated=False, activation="xielu", mlp_bias=False),
    "ArceeForCausalLM": Facts(gated=False, activation="relu2"),
    "AriaTextForCausalLM": Facts(mlp_bias=False),
    "ArcticForCausalLM": Facts(False, False, mlp_bias=False, dense_beside=True),
    "BailingMoeForCausalLM": Facts("use_qkv_bias", "use_bias", "head", "use_qk_norm", mlp_bias="use_bias"),
    "BailingMoeV2ForCausalLM": Facts(
        "use_qkv_bias", "use_bias", "head", "use_qk_norm", mlp_bias="use_bias", router_bias=True
    ),
    "Cohere2MoeForCausalLM": Facts(
        norm="layer_norm", placement="parallel", full_every=4, unrotated=True, tied=True, decoder={"logit_scale": True}
    ),
    **dict.fromkeys(
        ("ChatGLMModel", "ChatGLMForConditionalGeneration"),
        Facts("add_qkv_bias", "add_bias_linear", mlp_bias="add_bias_linear", rotary=0.5),
    ),
    "CwmForCausalLM": Facts(False, False, full_every=4),
    "DbrxForCausalLM": Facts(False, False, norm="layer_norm", mlp_bias=False),
    "DeepseekForCausalLM": Facts(mlp_bias=False),
    "Dots1ForCausalLM": Facts(qk_norm="head", mlp_bias=False, router_bias=True),
    "Ernie4_5ForCausalLM": Facts("use_bias", "use_bias", mlp_bias="use_bias", tied=True),
    "Ernie4_5_MoeForCausalLM": Facts("use_bias", "use_bias", mlp_bias="use_bias", router_bias=True, tied=True),
    "Exaone4ForCausalLM": Facts(False, False, "head", mlp_bias=False, placement="post", full_every=4, unrotated=True),
    "ExaoneForCausalLM": LLAMA,
    "ExaoneMoEForCausalLM": Facts(qk_norm="head", full_every=4, unrotated=True, router_bias=True),
    "Fairseq2LlamaForCausalLM": LLAMA,
    "FlexOlmoForCausalLM": Facts(qk_norm="full", placement="post", mlp_bias=False),
    "GraniteMoeForCausalLM": Facts(mlp_bias=False, residual_scale=True, decoder=SCALED),
    "GraniteMoeSharedForCausalLM": Facts(mlp_bias=False, residual_scale=True, decoder=SCALED),
    "GritLM": BARE,
    "HunYuanDenseV1ForCausalLM": Facts(qk_norm="head", qk_norm_if="use_qk_norm"),
    "HunYuanMoEV1ForCausalLM": Facts(qk_norm="head", qk_norm_if="use_qk_norm", shared=1),
    "HYV3ForCausalLM": Facts(qk_norm="head", router_bias=True),
    "HyperCLOVAXForCausalLM": Facts(residual_scale=True, decoder=SCALED),
    "IQuestCoderForCausalLM": LLAMA,
    "InternLM2ForCausalLM": Facts("bias", "bias", mlp_bias=False),
    "InternLM3ForCausalLM": Facts("qkv_bias", "bias", mlp_bias="bias"),
    "Jais2ForCausalLM": Facts(gated=False, activation="relu2", norm="layer_norm", norm_vectors=2),
    "LagunaForCausalLM": Facts(qk_norm="head", gate="head", full_every=1, router_bias=True),
    "Llama4ForCausalLM": Facts(mlp_bias=False, full_every=4, unrotated=True, shared=1, chunked=True),
    "MellumForCausalLM": Facts(qk_norm="head"),
    "MiMoForCausalLM": Facts(True, False, mlp_bias=False),
    **dict.fromkeys(
        ("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"), Facts(out_bias=False, router_bias=True, sinks=True)
    ),
    "MiniCPMForCausalLM": Facts(False, False, mlp_bias=False, residual_scale=True, decoder=SCALED),
    "MiniMaxM2ForCausalLM": Facts(False, False, "full", router_bias=True, mlp_bias=False),
    "MiniMaxM3SparseForCausalLM": Facts(False, False, "head", mlp_bias=False, router_bias=True),
    "Ministral3ForCausalLM": BARE,
    "MolmoForCausalLM": Facts("qkv_bias", False, "full", "attention_layer_norm", mlp_bias=False),
    "Molmo2ForConditionalGeneration": Facts("qkv_bias", False, "head", "use_qk_norm", mlp_bias=False),
    "MptForCausalLM": Facts(
        False, False, gated=False, activation="gelu", mlp_bias=False, norm="layer_norm", rotary=0.0, tied=True
    ),
    "NemotronForCausalLM": Facts(
        gated=False, activation="relu2", norm="layer_norm", norm_vectors=2, rotary=0.5
    ),
    "OrionForCausalLM": Facts(False, False, norm="layer_norm", norm_vectors=2, mlp_bias=False),
    "PanguEmbeddedForCausalLM": Facts("bias", "bias"),
    "PanguProMoEV2ForCausalLM": Facts("bias", "bias", "head", router_bias=True),
    "Param2MoEForCausalLM": Facts(
        "use_qkv_bias", "use_bias", "head", "use_qk_norm", mlp_bias="use_bias", router_bias=True
    ),
    "PhiMoEForCausalLM": Facts(norm="layer_norm", norm_vectors=2, mlp_bias=False, decoder={"head_bias": True}),
    "Plamo3ForCausalLM": Facts(False, False, "head", mlp_bias=False, placement="sandwich"),
    "Rnj1ForCausalLM": Facts(
        qk_norm="head", activation="gelu", mlp_bias=False, placement="sandwich", tied=True,
        decoder={"embed_scale": True, "logit_softcap": True},
    ),
    "SarvamMoEForCausalLM": Facts(False, False, "head", mlp_bias=False, router_bias=True),
    "SolarForCausalLM": Facts(False, False),
    "Step1ForCausalLM": LLAMA,
    "Step3TextForCausalLM": Facts(False, False, mlp_bias=False, kv_heads=1),
    "Step3p5ForCausalLM": Facts(qk_norm="head", gate="head", mlp_bias=False, router_bias=True),
    "TeleChat2ForCausalLM": Facts(False, True, mlp_bias=True),
    "TeleChat3ForCausalLM": LLAMA,
    "TeleFLMForCausalLM": Facts(False, False, mlp_bias=False, decoder=SCALED),
}  # fmt: skip
ARCHITECTURES = tuple(ROWS)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    row, c = ROWS[architecture], flattened(c)
    hidden, count = c.size("hidden_size", "d_model", "n_embd"), c.layer_count(*LAYERS)
    alike = {field: _of_all(c, field) for field in (*CHOSEN, *EXPERT_INNER, *SHARED_COUNT) if c.has(field)}
    c = Config({**c.raw, **alike, "hidden_size": hidden}, c.where, c.said, c.root)
    windows, sparse = layer_windows(c, count, row.full_every), sparse_layers(c, count)
    dense = (
        Mlp(c.size(*DENSE_INNER), row.gated, _activation(c, row), says(c, row.mlp_bias)) if not all(sparse) else None
    )
    experts = _experts(c, row) if any(sparse) else None
    layers = []
    for i, window in enumerate(windows):
        mlp: Any = experts if sparse[i] else dense
        rotated = _is_rotated(c, row, i, window, any(windows))
        attn = _attention(c, row, hidden, i, window, rotated)
        seen = (_for_images(c, hidden),) if sparse[i] and c.has("vision_moe_intermediate_size") else ()
        layers.append(Layer(attn, mlp, *_norms(c, row), row.residual_scale, extras=seen))
    settings: dict[str, Any] = dict(row.decoder or {})
    if c.has("padded_vocab_size"):
        settings["vocab"] = c.size("padded_vocab_size")
    return stack(c, name, architecture, hidden, layers, row.tied, **settings)


def says(c: Config, field: bool | str) -> bool:
    return c.flag(field, False) if isinstance(field, str) else field


def flattened(c: Config) -> Config:
    """With the fields of sections beside the others, and sizes that are said by a ratio."""
    more: dict[str, Any] = {}
    for name in WITHIN:
        more |= {k: v for k, v in c.within(name).raw.items() if k not in c.raw and k != "hidden_size"}
    if c.has("expansion_ratio"):
        more["ffn_hidden_size"] = c.size("expansion_ratio") * c.size("d_model")
    return Config({**c.raw, **more}, c.where, c.said, c.root) if more else c


def _norms(c: Config, row: Facts) -> tuple[str, int, str]:
    """Which norms, of how many vectors, and where they stand."""
    both = any(c.flag(field, False) for field in ("use_post_norm", "sandwich_norm"))
    norm = row.norm if c.flag("rmsnorm", True) else "layer_norm"
    return norm, row.norm_vectors, "sandwich" if both else "post" if c.flag("norm_after", False) else row.placement


def _for_images(c: Config, hidden: int) -> Extra:
    """Experts that only images choose (ERNIE 4.5 VL): weights that text reads nothing of."""
    experts, inner = c.size("vision_moe_num_experts", *EXPERTS), c.size("vision_moe_intermediate_size")
    return Extra("vision_experts", vectors=experts * (3 * hidden * inner + hidden))


def _of_all(c: Config, field: str) -> Any:
    """Hunyuan lists a size for each layer; they are all alike."""
    value = c.raw[field]
    if not isinstance(value, list):
        return value
    if len(set(map(str, value))) != 1:
        raise ChipError(f"{c.where}: {field} lists different sizes; chip knows models whose layers are alike in it")
    return value[0]


def _activation(c: Config, row: Facts) -> str:
    field = next((f for f in ("hidden_act", "hidden_activation", "activation_function") if c.has(f)), "hidden_act")
    return c.activation(field, row.activation)


def _attention(c: Config, row: Facts, hidden: int, i: int, window: int, rotated: bool) -> Attn:
    heads = of_layer(c, "num_attention_heads_per_layer", i) or c.size(*HEADS)
    whole = not c.flag("multi_query_attention", True)  # ChatGLM
    kv_heads = heads if whole else c.size(*KV_HEADS, default=row.kv_heads or heads)
    dim = c.size("head_dim", "attention_head_dim", "kv_channels", default=0) or _head_dim(c, hidden, heads)
    v_dim = c.size("v_head_dim", "v_channels", default=dim)
    if window:  # layers that slide may have heads of their own (Step 3.5, MiMo V2)
        sizes = _sliding_sizes(c)
        heads, kv_heads = sizes.size(*HEADS, default=heads), sizes.size(*KV_HEADS, default=kv_heads)
        dim, v_dim = sizes.size("head_dim", default=dim), sizes.size("v_head_dim", default=v_dim)
    c.divides(KV_HEADS[0], kv_heads, HEADS[0], heads)
    normed = row.qk_norm if not row.qk_norm_if or c.flag(row.qk_norm_if, False) else ""
    rope_dim = int(dim * c.rotary(row.rotary)) if rotated else 0
    c.refuse_odd(rope_dim)
    sharing = c.size("cla_share_factor", default=1) if c.flag("use_cla", False) else 1
    return Attn(
        heads, kv_heads, dim, window, says(c, row.qkv_bias) or c.flag("add_bias_linear", False),
        says(c, row.out_bias), rope_dim=rope_dim, qk_norm=normed, sinks=row.sinks and bool(window),
        gate={"": 0, "head": heads, "value": heads * v_dim}[row.gate], v_dim=v_dim if v_dim != dim else 0,
        q_rank=c.count("share_q_dim", default=0), source="shared" if i % sharing else "",
        chunked=row.chunked and bool(window), **_index(c, i),
    )  # fmt: skip


def _head_dim(c: Config, hidden: int, heads: int) -> int:
    """Of queries and keys, where no field says it as a whole."""
    if c.has("qk_nope_dim"):
        return c.size("qk_nope_dim") + c.count("qk_rope_dim", default=0)
    return c.head_dim(hidden, heads)


def _sliding_sizes(c: Config) -> Config:
    """What layers that slide have of their own, under the usual names."""
    other = c.raw.get("attention_other_setting")
    if isinstance(other, dict):
        return Config(other, f"{c.where}: attention_other_setting")
    return Config({k[4:]: v for k, v in c.raw.items() if k.startswith("swa_")}, f"{c.where}: swa_")


def _index(c: Config, i: int) -> dict[str, Any]:
    """The indexer of a layer that sees blocks of keys (MiniMax M3)."""
    said = c.raw.get("sparse_attention_config")
    if not isinstance(said, dict):
        return {}
    inside = Config(said, f"{c.where}: sparse_attention_config")
    if inside.has("sparse_attention_freq") and not of_layer(inside, "sparse_attention_freq", i):
        return {}
    blocks = inside.size("sparse_topk_blocks") + inside.count("sparse_local_block", default=0)
    return {
        "index_heads": inside.size("sparse_num_index_heads"), "index_dim": inside.size("sparse_index_dim"),
        "index_keys": blocks * inside.size("sparse_block_size"),
    }  # fmt: skip


def _is_rotated(c: Config, row: Facts, i: int, window: int, some_slide: bool) -> bool:
    if not row.rotary:
        return False
    if c.raw.get("no_rope_layers"):
        return bool(of_layer(c, "no_rope_layers", i))
    return bool(window) or not (row.unrotated and some_slide)


def _experts(c: Config, row: Facts) -> Moe:
    experts, inner = c.size(*EXPERTS), c.size(*EXPERT_INNER)
    chosen = next((field for field in CHOSEN if c.has(field)), CHOSEN[0])
    width = c.count(*SHARED_INNER, default=0)
    many = c.count(*SHARED_COUNT, default=1 if width else row.shared)
    width = (width or c.size("moe_shared_expert_intermediate_size", default=inner)) * many
    if row.dense_beside:
        width = c.size(*INNER)
    bias = says(c, row.mlp_bias)
    return Moe(
        experts, c.top_k(chosen, EXPERTS[0], experts), inner, shared=Mlp(width, bias=bias) if width else None,
        gated=row.gated, bias=bias, router_bias=row.router_bias,
    )  # fmt: skip


def of_layer(c: Config, field: str, i: int) -> int:
    """A layer's value of a field that lists one for each; 0 where the field is absent."""
    values = c.raw.get(field)
    if not isinstance(values, list):
        return 0
    if i >= len(values) or isinstance(values[i], bool) or not isinstance(values[i], int) or values[i] < 0:
        raise ChipError(f"{c.where}: {field} must list a whole number for each layer")
    return int(values[i])


def layer_windows(c: Config, count: int, full_every: int = 0) -> list[int]:
    """Tokens that each layer sees back, 0 for all."""
    window = c.count("sliding_window", "sliding_window_size", "attention_chunk_size", default=0)
    kinds = c.names("layer_types")
    if c.has("hybrid_layer_pattern"):
        return [window if of_layer(c, "hybrid_layer_pattern", i) else 0 for i in range(count)]
    if not kinds:
        every = c.count("sliding_window_pattern", "global_attn_every_n_layers", default=full_every) if full_every else 0
        return [window if every and (i + 1) % every else 0 for i in range(count)]
    if len(kinds) < count:
        raise ChipError(f"{c.where}: layer_types lists {len(kinds)} layers, but there are {count}")
    for kind in kinds:
        if kind not in KINDS:
            raise ChipError(f"{c.where}: layer_types has {kind[:40]!r}, known: {', '.join(KINDS)}")
    if set(kinds) & set(SLIDING) and not window:
        raise ChipError(f"{c.where}: layer_types has layers that slide, but sliding_window gives no window")
    return [window if kind in SLIDING else 0 for kind in kinds[:count]]


def sparse_layers(c: Config, count: int) -> list[bool]:
    """Which layers have experts."""
    if not any(c.has(field) for field in EXPERTS) or c.size(*EXPERTS) == 1:
        return [False] * count
    kinds = c.names("mlp_layer_types")
    if kinds:
        if len(kinds) < count:
            raise ChipError(f"{c.where}: mlp_layer_types lists {len(kinds)} layers, but there are {count}")
        return [kind == "sparse" for kind in kinds[:count]]
    if isinstance(c.raw.get("is_moe_layer"), list):
        return [bool(flag) for flag in (c.raw["is_moe_layer"] + [False] * count)[:count]]
    if c.has("moe_layers_enum"):  # Step: indices as text
        chosen = {int(word) for word in c.text("moe_layers_enum", "").split(",") if word.strip().isdigit()}
        return [i in chosen for i in range(count)]
    if c.has("moe_layers"):
        chosen = set(c.indices("moe_layers", count))
        return [i in chosen for i in range(count)]
    if isinstance(c.raw.get("moe_layer_freq"), list):
        return [bool(of_layer(c, "moe_layer_freq", i)) for i in range(count)]
    first = c.count(*DENSE_FIRST, default=0)
    last = c.count("moe_layer_end_index", default=count - 1)
    every = c.size("moe_layer_interval", "interleave_moe_layer_step", "moe_layer_frequency", default=1)
    return [first <= i <= last and (i + 1) % every == 0 for i in range(count)]
