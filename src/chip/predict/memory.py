"""Device memory of a scenario: weights, key/value cache, activations, and what fits."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from operator import itemgetter
from typing import Any

from chip import engines
from chip.dtypes import BYTES, Precision
from chip.engines.vllm.memory import cache_tokens
from chip.models.decoder import Attn, Decoder, Mlp
from chip.predict.pipeline import stage_decoders
from chip.types import Scenario


def activation_bytes(d: Decoder, tokens: int, rows: int, p: Precision, tp: int, streams: int = 1, ep: int = 1) -> float:
    """Peak of the tensors alive at once in one step: the residual stream beside the widest operator's input and output,
    or the logits (16-bit and their fp32 copy) at the end."""
    width, widest = BYTES[p.activation], _widest(d, tp, ep)
    logits = rows * d.vocab / tp * (width + BYTES["fp32"]) + tokens * d.hidden * width
    return max(tokens * (streams * d.hidden + widest) * width, logits)


@lru_cache(maxsize=256)
def _widest(d: Decoder, tp: int, ep: int) -> float:
    """Values that the widest operator of a layer reads and writes for a token."""
    widest = 0.0
    for _, layer in d.layers:
        a = layer.attn
        head_values = a.heads // tp * (a.head_dim if isinstance(a, Attn) else a.qk_dim)
        kv_values = a.kv_values(latent=False) / min(tp, a.kv_heads if isinstance(a, Attn) else a.heads)
        whole = ep > 1 and not isinstance(layer.mlp, Mlp)  # experts lie whole on each GPU
        mlp = (3 if layer.mlp.gated else 2) * layer.mlp.intermediate / (1 if whole else tp)
        if not isinstance(layer.mlp, Mlp):  # of each of its tokens: those of ep / tp by ep
            mlp = (layer.mlp.top_k if ep == 1 else layer.mlp.top_k / tp) * (mlp + d.hidden)
        widest = max(widest, 2 * head_values + kv_values, mlp)
    return d.hidden + widest


@lru_cache(maxsize=256)
def _weight_bytes(d: Decoder, p: Precision, tp: int, ep: int) -> float:
    return d.weight_bytes(p, tp, ep)


def needs(d: Decoder, s: Scenario, engine: str, p: Precision, capacity_bytes: float) -> dict[str, Any]:
    """Of each GPU; of a pipeline, of the stage that has the least room."""
    own = s.of_replica
    found = [_of_stage(stage, own, engine, p, capacity_bytes) for stage in stage_decoders(d, s.pp)] if s.pp > 1 else []
    fullest = max(found, key=itemgetter("total_bytes")) if found else _of_stage(d, own, engine, p, capacity_bytes)
    if found:
        for name in ("max_batch", "kv_capacity_tokens"):
            if name in fullest:
                fullest[name] = min(f[name] for f in found)
    fullest["max_batch"] = fullest["max_batch"] * s.replicas
    return fullest


def _of_stage(d: Decoder, s: Scenario, engine: str, p: Precision, capacity_bytes: float) -> dict[str, Any]:
    e = engines.get(engine)
    room = e.room(s, capacity_bytes)
    weights = _weight_bytes(d, p, s.tp, s.ep)
    kv_sequence = d.kv_bytes(room.cache_tokens, p, tp=s.tp)
    if d.architecture in e.COPIES_KEYS:
        kv_sequence *= _copies(d)
    batch = room.sequences
    activations = activation_bytes(d, room.step_tokens, batch, p, s.tp, room.streams, s.ep) + room.workspace_bytes
    free = capacity_bytes * room.share - weights - room.context_bytes - room.workspace_bytes
    total = weights + batch * kv_sequence + activations + room.context_bytes
    if room.pool:
        most = int((free - activations) // kv_sequence)
    else:
        most = int(free // (kv_sequence + activation_bytes(d, s.prompt, 1, p, s.tp, room.streams, s.ep)))
    out: dict[str, Any] = {
        "weights_bytes": round(weights),
        "kv_bytes_per_token": round(kv_sequence / room.cache_tokens, 3),
        "kv_bytes": round(batch * kv_sequence),
        "activation_bytes": round(activations),
        "context_bytes": round(room.context_bytes),
        "total_bytes": round(total),
        "capacity_bytes": round(capacity_bytes),
        "usable_bytes": round(capacity_bytes * room.share),
        "fits": total <= capacity_bytes * room.share,
        "max_batch": max(0, most),
    }
    if room.pool:
        token_bytes = d.kv_bytes(1, p, tp=s.tp)
        out["kv_capacity_tokens"] = cache_tokens(
            _windows(d), d.max_context, token_bytes, free - activations, capacity_bytes
        )
    return out


def _copies(d: Decoder) -> float:
    """Of each key of a group; a single head of keys is not copied."""
    a = d.layers[0][1].attn
    return a.heads / a.kv_heads if isinstance(a, Attn) and a.kv_heads > 1 else 1.0


@lru_cache(maxsize=256)
def _windows(d: Decoder) -> Counter[int]:
    """How many layers have a window of so many tokens; 0 for none."""
    found = Counter[int]()
    for n, layer in d.layers:
        found[getattr(layer.attn, "window", 0)] += n
    return found
