"""Device memory of a scenario: weights, key/value cache, activations, and what fits."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from chip import engines
from chip.dtypes import Precision
from chip.engines.options import Settings
from chip.models.decoder import Decoder
from chip.predict.pipeline import stage_decoders
from chip.types import Scenario

LEAST = ("max_batch", "kv_capacity_tokens")  # of a pipeline: the smallest value of any stage


class Fixed(NamedTuple):
    """What a model needs on each GPU, whatever the batch and the lengths."""

    weight_bytes: float
    token_bytes: float  # of the cache, for a token that all layers keep
    windows: Counter[int]  # number of layers by the length of their window; 0 for none


@lru_cache(maxsize=256)
def fixed(d: Decoder, p: Precision, tp: int, ep: int) -> Fixed:
    windows = Counter[int]()
    for n, layer in d.layers:
        windows[layer.attn.window] += n
    return Fixed(d.weight_bytes(p, tp, ep), d.kv_bytes(1, p, tp=tp), windows)


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
    e, model = engines.get(engine), fixed(d, p, s.tp, s.ep)
    options = e.options(settings, capacity_bytes)
    room = e.room(s, options)
    weights, usable = model.weight_bytes, capacity_bytes * room.share
    kv_sequence = d.kv_bytes(room.cache_tokens, p, tp=s.tp)
    if d.architecture in e.COPIES_KEYS:
        kv_sequence *= d.copied_heads
    kv = room.sequences * kv_sequence
    activations = e.peak_bytes(d, p, s, room)
    free = usable - weights - room.context_bytes - room.workspace_bytes
    pool = free - activations
    most = pool // kv_sequence if room.pool else free // (kv_sequence + activations / s.batch)
    activations += room.workspace_bytes
    total = weights + kv + activations + room.context_bytes
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
