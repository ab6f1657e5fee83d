"""Device memory of a scenario: weights, key/value cache, activations, and what fits."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from chip import engines
from chip.dtypes import BYTES, Precision
from chip.engines.options import Settings
from chip.models.decoder import Attn, Decoder, Layer, Mlp
from chip.predict.pipeline import stage_decoders
from chip.types import Scenario

LEAST = ("max_batch", "kv_capacity_tokens")  # of a pipeline: the smallest value of any stage


class Fixed(NamedTuple):
    """What a model needs on each GPU, whatever the batch and the lengths."""

    weight_bytes: float
    token_bytes: float  # of the cache, for a token that all layers keep
    widest: float  # values per token that the widest operator of a layer reads and writes
    key_copies: float  # of each key, where an engine copies keys to every head; a single key head is not copied
    windows: Counter[int]  # number of layers by the length of their window; 0 for none


@lru_cache(maxsize=256)
def fixed(d: Decoder, p: Precision, tp: int, ep: int) -> Fixed:
    windows = Counter[int]()
    for n, layer in d.layers:
        windows[layer.attn.window] += n
    widest = d.hidden + max(_widest(layer, d.hidden, tp, ep) for _, layer in d.layers)
    a = d.layers[0][1].attn
    copies = a.heads / a.kv_heads if isinstance(a, Attn) and a.kv_heads > 1 else 1.0
    return Fixed(d.weight_bytes(p, tp, ep), d.kv_bytes(1, p, tp=tp), widest, copies, windows)


def _widest(layer: Layer, hidden: int, tp: int, ep: int) -> float:
    a, mlp = layer.attn, layer.mlp
    head_dim, kv_heads = (a.head_dim, a.kv_heads) if isinstance(a, Attn) else (a.qk_dim, a.heads)
    attention = 2 * (a.heads // tp * head_dim) + a.kv_values(latent=False) / min(tp, kv_heads)
    values = (3 if mlp.gated else 2) * mlp.intermediate
    if isinstance(mlp, Mlp):
        return max(attention, values / tp)
    if ep == 1:
        return max(attention, mlp.top_k * (values / tp + hidden))
    return max(attention, mlp.top_k / tp * (values + hidden))  # whole experts: of ep / tp replicas, over ep GPUs


def needs(
    d: Decoder, s: Scenario, engine: str, p: Precision, capacity_bytes: float, settings: Settings = ()
) -> dict[str, Any]:
    """The memory of one GPU; of a pipeline, one of the fullest stage. `settings`: of the engine."""
    own = s.of_replica
    if s.pp == 1:
        fullest = _of_stage(d, own, engine, p, capacity_bytes, settings)
    else:
        found = [_of_stage(stage, own, engine, p, capacity_bytes, settings) for stage in stage_decoders(d, s.pp)]
        least = {name: min(f[name] for f in found) for name in LEAST if name in found[0]}
        fullest = max(found, key=itemgetter("total_bytes")) | least
    fullest["max_batch"] *= s.replicas
    return fullest


def _of_stage(
    d: Decoder, s: Scenario, engine: str, p: Precision, capacity_bytes: float, settings: Settings
) -> dict[str, Any]:
    e, model, width = engines.get(engine), fixed(d, p, s.tp, s.ep), BYTES[p.activation]
    options = e.options(settings, capacity_bytes)
    room = e.room(s, options)
    weights, usable = model.weight_bytes, capacity_bytes * room.share

    def activation_bytes(tokens: int, rows: int) -> float:
        """The most that is alive at once in a step: the residual stream with the input and output of the widest
        operator, or at the end the logits (16-bit and their fp32 copy)."""
        logits = rows * d.vocab / s.tp * (width + BYTES["fp32"]) + tokens * d.hidden * width
        return max(tokens * (room.streams * d.hidden + model.widest) * width, logits)

    kv_sequence = d.kv_bytes(room.cache_tokens, p, tp=s.tp)
    if d.architecture in e.COPIES_KEYS:
        kv_sequence *= model.key_copies
    kv, activations = room.sequences * kv_sequence, activation_bytes(room.step_tokens, room.sequences)
    activations += room.workspace_bytes
    total = weights + kv + activations + room.context_bytes
    free = usable - weights - room.context_bytes - room.workspace_bytes
    pool = free - activations
    most = pool // kv_sequence if room.pool else free // (kv_sequence + activation_bytes(s.prompt, 1))
    out: dict[str, Any] = {
        "weights_bytes": round(weights),
        "kv_bytes_per_token": round(kv_sequence / room.cache_tokens, 3),
        "kv_bytes": round(kv),
        "activation_bytes": round(activations),
        "context_bytes": round(room.context_bytes),
        "total_bytes": round(total),
        "capacity_bytes": round(capacity_bytes),
        "usable_bytes": round(usable),
        "fits": total <= usable,
        "max_batch": max(0, min(int(most), room.at_once or int(most))),
    }
    if room.pool:
        longest = out["max_model_len"] = room.longest or d.max_context
        out["kv_capacity_tokens"] = e.cache_tokens(model.windows, longest, model.token_bytes, pool, options)
    return out
