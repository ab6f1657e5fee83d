"""Operators that differ only in tokens or context: asked for thousands of times in a sweep, so answered by functions
made once. An answer is a plain tuple (seconds, low, high, bound, source, FLOPs, bytes)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from chip.types import Cost, Estimate, Op, Seq

Answer = tuple[float, float, float, str, str, float, float]
AlongTokens = Callable[[int], Answer]
OverSequences = Callable[[Seq], Answer]

EXACT = 128  # shapes up to this are answered one by one, larger ones between nodes
ROW_NODES_LOG2 = 3  # that of a norm or an activation has none
TOKEN_NODES_LOG2 = 5  # 32 nodes an octave, at most 3 % apart: a dense layer's time has stairs
CONTEXT_NODES_LOG2 = 3  # 8 nodes: that of decode attention is nearly straight


def answer(estimate: Estimate, cost: Cost) -> Answer:
    seconds, low_s, high_s, source, bound = estimate
    return seconds, low_s, high_s, bound, source, cost[0], cost[1] + cost[2]


def grown(op: Op) -> Callable[[int], Op]:
    """The operator of a program lowered for one token, for n tokens."""
    cls, at = type(op), op.TOKEN_AXIS
    axes: list[Any] = [getattr(op, f.name) for f in fields(op)]  # type: ignore[arg-type]
    before, one, after = axes[:at], axes[at], axes[at + 1 :]
    return lambda tokens: cls(*before, one * tokens, *after)  # type: ignore[call-arg]


def between(value: int, known: dict[int, float], ask: Callable[[int], float], nodes_log2: int) -> float:
    """A function of a whole number, asked at nodes and drawn straight between them; what was asked is remembered."""
    if value <= EXACT:
        at = known.get(value)
        if at is None:
            at = known[value] = ask(value)
        return at
    step = 1 << (value.bit_length() - 1 - nodes_log2)
    low = value & -step
    first = known.get(low)
    if first is None:
        first = known[low] = ask(low)
    if low == value:
        return first
    second = known.get(low + step)
    if second is None:
        second = known[low + step] = ask(low + step)
    return first + (second - first) * (value - low) / step
