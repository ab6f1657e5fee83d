"""Multi-head latent attention as DeepSeek spells it, in models of others: an MLP, or experts after the first layers."""

from __future__ import annotations

from dataclasses import replace

from chip.decoders.config import Config
from chip.decoders.decoder import Decoder, LatentAttn, Layer, Mlp, Moe
from chip.decoders.extras import Extra
from chip.decoders.families.standard import CHOSEN, EXPERT_INNER, EXPERTS, LAYERS, SHARED_COUNT, sparse_layers
from chip.decoders.spelling import stack

SCALED = ("MiniCPM3ForCausalLM",)  # embeddings, branches and logits are multiplied by constants
INDEXER = ("index_n_heads", "index_head_dim", "index_topk")
ROUTED_WITHOUT_BIAS = ("MistralLarge3ForCausalLM",)
ARCHITECTURES = (
    *("AXK1ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeLiteForCausalLM", "GlmMoeDsaForCausalLM"),
    *("LongcatFlashForCausalLM", "LongcatFlashNgramForCausalLM"),
    *("MiniCPM3ForCausalLM", "MistralLarge3ForCausalLM", "PanguUltraMoEForCausalLM", "SarvamMLAForCausalLM"),
)  # fmt: skip


def attention(c: Config) -> LatentAttn:
    """By DeepSeek's names, all of which published configs give."""
    names = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    kv_rank, nope, rope, v = map(c.size, names)
    q_rank = c.count("q_lora_rank", default=0)
    index = [c.size(field) for field in INDEXER] if c.has(INDEXER[0]) else [0, 0, 0]
    bias = c.flag("attention_bias", False)
    return LatentAttn(c.size("num_attention_heads"), q_rank, kv_rank, nope, rope, v, bias, 0, *index)


def decoder(c: Config, name: str, architecture: str) -> Decoder:
    if architecture.startswith("LongcatFlash"):
        return _longcat(c, name, architecture)
    hidden, count = c.size("hidden_size"), c.layer_count(*LAYERS)
    attn, sparse = attention(c), sparse_layers(c, count)
    dense = None if all(sparse) else Mlp(c.size("intermediate_size"), bias=c.flag("mlp_bias", False))
    experts = routed(c, architecture not in ROUTED_WITHOUT_BIAS) if any(sparse) else None
    placement = "sandwich" if architecture == "PanguUltraMoEForCausalLM" and c.flag("sandwich_norm", True) else "pre"
    scaled = architecture in SCALED
    layers = []
    for is_sparse in sparse:
        mlp = experts if is_sparse else dense
        assert mlp is not None
        layers.append(Layer(attn, mlp, placement=placement, residual_scale=scaled))
    tied = architecture == "MiniCPM3ForCausalLM"
    return stack(c, name, architecture, hidden, layers, tied, embed_scale=scaled, logit_scale=scaled)


def _longcat(c: Config, name: str, architecture: str) -> Decoder:
    """Layers of two attentions and two MLPs; beside the first MLP stand experts, some of which hand their input on."""
    hidden, attn = c.size("hidden_size"), attention(c)
    mlp = Mlp(c.size("ffn_hidden_size", "intermediate_size"))
    moe = replace(routed(c, True), shared=mlp, zero=c.count("zero_expert_num", default=0))
    layers = [Layer(attn, moe), Layer(attn, mlp)] * c.layer_count("num_layers", "num_hidden_layers")
    return stack(c, name, architecture, hidden, layers, False, extras=_ngrams(c, hidden))


def _ngrams(c: Config, hidden: int) -> tuple[Extra, ...]:
    """Tables of the tokens before, by a hash; the mean of all is the embedding."""
    if not c.has("ngram_vocab_size_ratio"):
        return ()
    many = c.size("emb_split_num") * (c.size("emb_neighbor_num") - 1)
    rows = round(c.number("ngram_vocab_size_ratio", 0) * c.size("vocab_size")) + many
    return (Extra("ngrams", ((hidden, hidden),), (((many + 1) * hidden, hidden),), table=(rows, hidden)),)


def routed(c: Config, router_bias: bool) -> Moe:
    """Experts beside shared ones; DeepSeek V3's router chooses among groups."""
    experts, inner = c.size(*EXPERTS), c.size(*EXPERT_INNER)
    chosen = next((field for field in CHOSEN if c.has(field)), CHOSEN[0])
    shared = c.count(*SHARED_COUNT, default=0) * inner
    groups = c.size("n_group", default=1)
    return Moe(
        experts, c.top_k(chosen, EXPERTS[0], experts), inner, shared=Mlp(shared) if shared else None,
        router="biased_router" if router_bias else "grouped_router", groups=groups,
    )  # fmt: skip
