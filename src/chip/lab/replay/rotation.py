"""How often each buffer of an operator is there, so that its bytes are as far from the cache as they were in the model.

producer  a buffer comes round again after as many bytes as lay between its uses in the model
cold      no buffer is in cache when its turn comes
hot       every call uses the same buffers
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from chip.files.traces import Operator

RULES = ("producer", "cold", "hot")
COLD_FACTOR = 4  # times the cache


@dataclass(frozen=True, slots=True)
class Rotation:
    copies: Mapping[int, int]  # of each memory of the operator
    touch: tuple[int, ...] = ()  # memories written just before each call, as their producer did; the last is nearest
    flush: bool = False  # empty the cache before each round: the copies alone are too few for it


def rotation(operator: Operator, rule: str, l2_bytes: int, calls: int) -> Rotation:
    """For rounds of `calls` calls."""
    reuse = _reuse(operator, rule)
    far = COLD_FACTOR * l2_bytes
    each = max(1, operator.touched_bytes)
    copies, flush = {}, False
    for memory, between in reuse.items():
        wanted = far if between is None else min(between, far)
        copies[memory] = max(1, min(calls, math.ceil(wanted / each)))
        flush = flush or (wanted > l2_bytes and copies[memory] * each < wanted)
    # where one call alone goes through the cache, nothing stays in it from one call to the next
    touch = tuple(near(operator, l2_bytes)) if rule == "producer" and each > l2_bytes // 2 else ()
    return Rotation(copies, touch, flush)


def near(operator: Operator, l2_bytes: int) -> dict[int, int]:
    """Memories that were in cache when the model called, the nearest last, with the bytes since their last use."""
    hosts = {t.memory for t in operator.tensors if t.host}
    reuse = _reuse(operator, "producer").items()
    warm = {m: between for m, between in reuse if between is not None and between <= l2_bytes and m not in hosts}
    return dict(sorted(warm.items(), key=lambda item: -item[1]))


def _reuse(operator: Operator, rule: str) -> dict[int, int | None]:
    """Bytes between uses of each memory on the device; None: more than any cache holds."""
    between_uses: dict[int, int | None] = {}
    for t in operator.tensors:
        if t.host or rule == "hot":
            between_uses[t.memory] = 0
        elif rule == "cold" or t.reuse_bytes is None:
            between_uses[t.memory] = None
        elif between_uses.get(t.memory, 0) is not None:
            between_uses[t.memory] = max(between_uses.get(t.memory) or 0, t.reuse_bytes)
    return between_uses
