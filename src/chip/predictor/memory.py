"""Device memory of a scenario: weights, key/value cache, activations, and what fits."""

from __future__ import annotations

from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from chip.decoders.decoder import Decoder
from chip.dtypes import BYTES, Precision
from chip.engines import Engine
from chip.engines.memory import Load
from chip.predictor.parallel import stage_decoders
from chip.types import Scenario

LEAST = ("max_batch", "kv_capacity_tokens")  # of a pipeline: the smallest value of any stage


class Fixed(NamedTuple):
    """What a model needs on each GPU, whatever the batch and the lengths."""

    weight_bytes: float
    token_bytes: float  # of the cache, for a token that all layers keep


@lru_cache(maxsize=256)
def fixed(d: Decoder, p: Precision, tp: int, ep: int) -> Fixed:
    encoder = d.encoder.params * BYTES[p.activation] / tp if d.encoder else 0.0
    return Fixed(d.weight_bytes(p, tp, ep) + encoder, d.kv_bytes(1, p, tp=tp))


def needs(
    d: Decoder, s: Scenario, engine: Engine, p: Precision, capacity_bytes: float, options: Any, on_cpu: bool = False
) -> dict[str, Any]:
    """The memory of one GPU; of a pipeline, one of the fullest stage. `options`: of the engine. A CPU has no driver's
    context."""
    replica = s.of_replica
    if s.pp == 1:
        fullest = _of_stage(d, replica, engine, p, capacity_bytes, options)
    else:
        stages = [_of_stage(stage, replica, engine, p, capacity_bytes, options) for stage in stage_decoders(d, s.pp)]
        least = {name: min(stage[name] for stage in stages) for name in LEAST if name in stages[0]}
        fullest = max(stages, key=itemgetter("total_bytes")) | least
    fullest["max_batch"] *= s.replicas
    if on_cpu:
        fullest["total_bytes"] -= fullest["context_bytes"]
        fullest["context_bytes"] = 0
        fullest["fits"] = fullest["total_bytes"] <= fullest["usable_bytes"]
    return fullest


def _of_stage(
    d: Decoder, s: Scenario, engine: Engine, p: Precision, capacity_bytes: float, options: Any
) -> dict[str, Any]:
    load = Load(d, p, s, *fixed(d, p, s.tp, s.ep), capacity_bytes)
    m = engine.memory(load, options)
    total = load.weight_bytes + m.kv_bytes + m.activation_bytes + m.context_bytes
    out: dict[str, Any] = {
        "weights_bytes": round(load.weight_bytes),
        "kv_bytes_per_token": round(m.kv_bytes_per_token, 3),
        "kv_bytes": round(m.kv_bytes),
        "activation_bytes": round(m.activation_bytes),
        "context_bytes": round(m.context_bytes),
        "total_bytes": round(total),
        "capacity_bytes": round(capacity_bytes),
        "usable_bytes": round(m.usable_bytes),
        "fits": total <= m.usable_bytes,
        "max_batch": m.max_batch,
    }
    if d.states:
        out["state_bytes_per_sequence"] = round(d.state_bytes(p, s.tp))
    if m.kv_capacity_tokens is not None:
        out |= {"max_model_len": m.max_model_len, "kv_capacity_tokens": m.kv_capacity_tokens}
    return out
