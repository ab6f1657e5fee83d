"""What HF transformers' modules hold at once while they run, family by family, as read in their modules: the peak of a
prompt, and of a step that joins a token to a cache that grows.

Python keeps what a name still refers to: the embeddings, a layer's input, and the scores that a layer returned, until
the next one returns. `tests/device/test_memory_against_hf.py` compares the peaks with those that torch allocates.
"""

from __future__ import annotations

from typing import NamedTuple

from chip.decoders.compressed import CompressedAttn
from chip.decoders.decoder import Attn, Decoder, Layer, Mlp
from chip.decoders.states import StateMixer
from chip.dtypes import BYTES, Precision
from chip.engines.hf import BROADCAST
from chip.engines.memory import Room
from chip.types import Scenario

# Driver, framework and kernels beside torch's pool: 1.36 to 1.38 GB in the recorded runs on an H200.
CONTEXT_BYTES = 1.37e9
# cuBLAS's workspace as torch sets it up on Hopper and newer, one for each stream.
WORKSPACE_BYTES = 32 * 2**20
WIDE = BYTES["fp32"]
STREAMS = 4  # embeddings, the layer's input, the sum after attention, and the input of the MLP, ...
POST_STREAMS = 3  # ... which is that sum where norms come after
# Families that keep one more: the output of attention, or Falcon's second norm.
MORE_STREAMS = ("FalconForCausalLM", "GPT2LMHeadModel", "GPTBigCodeForCausalLM", "StableLmForCausalLM")
ATTENDING_STREAMS = 3  # embeddings, the layer's input, and that of attention
QUERIES, KEYS = 4, 2  # tensors as wide as all heads, and as wide as the key heads, while angles are applied
INSIDE = {"gelu_new": 4, "gelu_fast": 5}  # tensors as wide as the MLP inside while its activation runs; others: 2
GATED, MERGED = 3, 4  # ... of a gated one: activation, up and product; its merged projection besides
EXPERT_ROWS = 4  # tensors with a row for each pair of token and expert when the results are put back in order
EXPERTS = {"GptOssForCausalLM": (9, 5)}  # (inside, rows): a bias for each pair, and clamped halves; others: (4, 4)


class Scores(NamedTuple):
    """What attention holds when it holds most, where it is written out: tensors by what they have a value for. Without
    another word, for each head, query and key."""

    narrow: int = 0  # as wide as the activations
    wide: int = 0  # in fp32
    cast: int = 0  # in fp32, where activations are narrower
    flags: int = 0  # of one byte
    masks: int = 0  # with a value for each query and key, in fp32
    queries: int = 0  # as wide as all heads, for each token
    wide_queries: int = 0  # ... in fp32
    cast_queries: int = 0  # ... in fp32, where activations are narrower
    last: int = 0  # tensors of scores that are still alive when the MLP runs


# Attention without sdpa, by family.
WRITTEN_OUT = {
    # the scores before and under the mask, and those that the layer before returned; softmax in fp32
    "BloomForCausalLM": Scores(narrow=3, wide=1, cast=1, queries=4, last=2),
    # the product in fp32, and its scaled values; the scores that the layer before returned
    "GPTJForCausalLM": Scores(narrow=1, wide=2, queries=5, cast_queries=2, last=2),
    # the scores under the mask, joined with the sinks, and less their largest
    "GptOssForCausalLM": Scores(narrow=3, queries=3, last=1),
}
# sdpa to one key head: torch widens queries and mask, keys and values for every head, and asks which rows are hidden.
ONE_KEY_HEAD = Scores(wide=2, flags=1, masks=1, queries=1, wide_queries=2, cast_queries=1)


def room(s: Scenario, cache_tokens: int, context_bytes: float = CONTEXT_BYTES, workspaces: int = 1) -> Room:
    """All of the card, for all requests at once."""
    return Room(1.0, context_bytes, cache_tokens, s.batch * s.prompt, s.batch, workspaces * WORKSPACE_BYTES)


def peak_bytes(d: Decoder, p: Precision, s: Scenario, keys: int) -> float:
    """The most alive at once while prompts run, beside weights and cache. `keys` that each token attends to."""
    width, tokens = BYTES[p.activation], s.batch * s.prompt
    stream = tokens * d.hidden * width
    logits = s.batch * d.vocab / s.tp * 2 * width + 2 * stream  # two where they are scaled or capped
    moments = [logits]
    for _, layer in d.layers:
        last, attention = _attention_bytes(d, layer, s, keys, width)
        streams = POST_STREAMS if layer.placement == "post" else STREAMS + (d.architecture in MORE_STREAMS)
        moments += [
            attention + ATTENDING_STREAMS * stream,
            last + streams * stream + _inside_values(d, layer, s) * tokens * width,
        ]
    return max(moments) + _mask_bytes(d, s, keys, width)


def _attention_bytes(d: Decoder, layer: Layer, s: Scenario, keys: int, width: float) -> tuple[float, float]:
    """Of scores that are still alive after attention; and of all that attention holds beside the residual stream."""
    a, tokens = layer.attn, s.batch * s.prompt
    assert not isinstance(a, (StateMixer, CompressedAttn))  # HF engines refuse models with states
    heads = a.heads / s.tp
    dim, kv_heads = (a.head_dim, a.kv_heads) if isinstance(a, Attn) else (a.qk_dim, a.heads)
    queries, scores = tokens * heads * dim, tokens * heads * keys
    form = WRITTEN_OUT.get(d.architecture) or (ONE_KEY_HEAD if _broadcasts(d, layer) else None)
    if form is None:
        most = QUERIES * queries + KEYS * tokens * min(heads, kv_heads) * dim
        if _masked(layer, keys):  # queries, keys and values of every head, the result; what sdpa makes of the mask
            most = max(most, 4 * queries + tokens * keys)
        return 0.0, most * width
    cast = WIDE if width < WIDE else 0.0
    of_score = form.narrow * width + form.wide * WIDE + form.cast * cast + form.flags
    of_query = form.queries * width + form.wide_queries * WIDE + form.cast_queries * cast
    return form.last * scores * width, scores * of_score + form.masks * tokens * keys * WIDE + queries * of_query


def _broadcasts(d: Decoder, layer: Layer) -> bool:
    a = layer.attn
    return d.architecture in BROADCAST and isinstance(a, Attn) and a.kv_heads == 1 < a.heads


def _masked(layer: Layer, keys: int) -> bool:
    """Whether attention is told which keys it sees: causal attention over all of them is not."""
    return 0 < layer.attn.window < keys


def _mask_bytes(d: Decoder, s: Scenario, keys: int, width: float) -> float:
    """A value for each query and key, for each kind of layer. Attention that is written out always adds one to the
    scores of each sequence; sdpa is told bits."""
    kinds = {layer.attn.window: layer for _, layer in d.layers}.values()
    if d.architecture in WRITTEN_OUT:
        return len(kinds) * s.batch * s.prompt * keys * width
    return sum(_masked(layer, keys) for layer in kinds) * s.prompt * keys


def _inside_values(d: Decoder, layer: Layer, s: Scenario) -> float:
    """Of the MLP for each token, beside the residual stream."""
    mlp = layer.mlp
    if isinstance(mlp, Mlp):
        copies = (MERGED if mlp.fused_gate_up else GATED) if mlp.gated else INSIDE.get(mlp.activation, 2)
        return copies * mlp.intermediate / s.tp
    inside, rows = EXPERTS.get(d.architecture, (MERGED, EXPERT_ROWS))
    pairs = mlp.top_k * max(inside * mlp.intermediate + d.hidden, rows * d.hidden)
    return pairs / s.tp + (d.hidden if mlp.shared else 0)
