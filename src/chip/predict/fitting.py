"""Precisions in which a model that does not fit would: a hint beside the answer."""

from __future__ import annotations

from chip.dtypes import Precision, precision
from chip.models.decoder import Decoder
from chip.predict import memory
from chip.records import replace
from chip.types import Scenario

NARROWER = ("fp8", "int4")


def hints(decoder: Decoder, s: Scenario, engine: str, asked: Precision, capacity_bytes: float) -> list[str]:
    """Such as `fits with --dtype int4 (42.1 GiB)`: the widest that does; nothing where none does."""
    weights = decoder.weight_bytes(asked, s.tp, s.ep)
    for name in NARROWER:
        for kv in ("", "fp8") if engine == "vllm" else ("",):
            p = precision(name, kv or asked.kv)
            if decoder.weight_bytes(p, s.tp, s.ep) >= weights:
                continue
            room = memory.needs(decoder, replace(s, dtype=name), engine, p, capacity_bytes)
            if room["fits"]:
                gib = int(str(room["total_bytes"])) / 2**30
                return [f"fits with --dtype {name}{' --kv-dtype fp8' if kv else ''} ({gib:.1f} GiB)"]
    return []
