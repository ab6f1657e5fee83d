"""A walk along an axis of a prediction or an operator: no fall beyond the slack at any edge between two neighbours, of
operators none below the interval of the smaller one.

Every second number walks along another combination of a bundled GPU, model, engine and precision, until all were; the
others along operators. Points a quarter of an octave apart are asked, and both sides of every power of two, where
tables, graphs and chunks end; where time falls between two of them, bisection finds the edge.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import scenarios
from physics import ENDING, explained

from chip import ops
from chip.ops.attention import AnyAttention
from chip.ops.experts import MoeExperts
from chip.predictor import operator, request
from chip.types import ChipError

NAME = "edges"
LIMIT_S = 20.0  # a walk is some hundred predictions
IN_ORDER = True
COUNTED: Counter[str] = Counter()
SLACK = 0.03  # a fall between two neighbours that may stand
OTHER_KERNEL = 0.05  # along axes that a model fixes: another width may be another kernel, vectors of other lengths
WALKS = {"batch": 1024, "prompt": 65_536, "output": 2048}
METRICS = {"batch": ("ttft_ms", "tpot_ms"), "prompt": ("ttft_ms", "tpot_ms"), "output": ("e2e_ms",)}
FIXED = ("head_dim", "v_head_dim", "top_k", "groups", "kernel", "stride", "ranks")  # other shapes, other kernels
OPERATOR_END = 65_536
GROWING, ATTENDING = ("rows", "m", "tokens"), ("batch", "q_len", "kv_len")  # axes that differ from step to step
Took = tuple[float, float]  # time, and the least that more may take; 0 where the answer names why it takes less


def count() -> int:
    return 2 * len(scenarios.combinations())


def case(draw: Random, number: int) -> dict[str, Any]:
    if number % 2 == 0:
        axis = draw.choice(sorted(WALKS))
        sizes = {"batch": draw.choice((1, 8, 32)), "prompt": 512, "output": 32}
        question = {**scenarios.combination(number // 2), **sizes}
        return {"what": "predict", "axis": axis, "question": question, "metric": draw.choice(METRICS[axis])}
    question = scenarios.operator(draw)
    axes = [
        f.name
        for f in dataclasses.fields(ops.get(question["op"]))  # type: ignore[arg-type]
        if f.type == "int" and f.name in question and f.name not in FIXED
    ]
    return {"what": "estimate", "axis": draw.choice(axes) if axes else "", "question": question}


def answered(question: dict[str, Any], metric: str) -> dict[str, Any] | None:
    """None where there is none."""
    try:
        return request.answer(question) if metric else operator.answer(question)
    except ChipError:
        return None


def took(question: dict[str, Any], metric: str) -> Took | None:
    found = answered(question, metric)
    if not found or (metric == "tpot_ms" and any(ENDING in note for note in found["notes"])):
        return None  # TPOT of last steps of fewer requests follows no law
    time = found[metric or "us"]
    least = time * (1 - SLACK) if metric else min(time * (1 - SLACK), found["interval"][0])
    return time, 0.0 if explained(found) else least


def time_of(question: dict[str, Any], metric: str) -> float | None:
    found = took(question, metric)
    return found[0] if found else None


def check(case: dict[str, Any]) -> str:
    axis, question, predicts = case["axis"], case["question"], case["what"] == "predict"
    if not axis:
        return ""
    COUNTED["along predictions" if predicts else "along operators"] += 1

    def at(value: int) -> Took | None:
        COUNTED["points asked"] += 1
        return took({**question, axis: value}, case.get("metric", ""))

    if predicts:
        return walk(at, steps(WALKS[axis]), axis)
    if axis == "batch" and 1 < question.get("q_len", 1) < question.get("kv_len", 1):
        return ""  # chunks have a grid for each number of sequences; engines run them of one
    if axis in (ATTENDING if issubclass(ops.get(question["op"]), AnyAttention) else GROWING):
        return walk(at, steps(OPERATOR_END), axis)
    return over_widths(question, widths(question["op"], axis), axis)


def widths(op: str, axis: str) -> list[int]:
    """Of an axis that a model fixes: multiples of 8, as models have them, up to where torch takes another kernel; no
    power of two experts, which are chosen by another. More experts to multiply by are no more work: each has fewer
    tokens, which may fill fewer tiles."""
    if axis == "experts" and issubclass(ops.get(op), MoeExperts):
        return []
    edge = min(getattr(ops.get(op), "EDGES", None) or (OPERATOR_END,)) if axis == "cols" else OPERATOR_END
    found = sorted({-(-value // 8) * 8 for value in steps(edge) if value >= 8})
    return [value for value in found if axis != "experts" or value & (value - 1)]


def wider(question: dict[str, Any], axis: str, value: int) -> dict[str, int]:
    """Key heads come with the queries that share them: the same queries over more of them is less work for each."""
    if axis != "kv_heads":
        return {axis: value}
    return {axis: value, "heads": value * -(-question["heads"] // question["kv_heads"])}


def over_widths(question: dict[str, Any], values: list[int], axis: str) -> str:
    """Another width may be another kernel, and its time rests on other points: it may fall, but not below what the one
    before says that it may be off by."""
    before: dict[str, Any] | None = None
    for value in values:
        COUNTED["points asked"] += 1
        found = answered({**question, **wider(question, axis, value)}, "")
        if found and before and found["us"] < min(before["us"] * (1 - OTHER_KERNEL), before["interval"][0]):
            least = f"{before['us']:.5g} (at least {before['interval'][0]:.5g})"
            return f"{axis} {before['axes'][axis]} -> {value}: {least} -> {found['us']:.5g}"
        before = before if found and explained(found) else found
    return ""


def steps(most: int) -> list[int]:
    octaves = range(most.bit_length())
    found = {round(2 ** (i + quarter / 4)) for i in octaves for quarter in range(4)} | {(1 << i) + 1 for i in octaves}
    return sorted(value for value in found if value <= most)


def walk(asked: Callable[[int], Took | None], values: list[int], axis: str) -> str:
    before: tuple[int, float, float] | None = None
    for value in values:
        found = asked(value)
        if found is None:
            before = None
            continue
        time, least = found
        if before and time < before[2]:
            return _edge(asked, before[:2], (value, time), axis)
        before = (value, time, least) if least else before
    return ""


def _edge(asked: Callable[[int], Took | None], a: tuple[int, float], b: tuple[int, float], axis: str) -> str:
    """The two neighbours between which most of the fall lies."""
    low, high = a, b
    while high[0] - low[0] > 1:
        middle = (low[0] + high[0]) // 2
        found = asked(middle)
        if found is None:
            break
        if low[1] - found[0] > found[0] - high[1]:
            high = (middle, found[0])
        else:
            low = (middle, found[0])
    return (
        f"{axis} {a[0]} -> {b[0]}: {a[1]:.5g} -> {b[1]:.5g} ({b[1] / a[1] - 1:+.1%}); "
        f"most of it at {low[0]} -> {high[0]}: {low[1]:.5g} -> {high[1]:.5g}"
    )
