"""A walk along an axis of a prediction or an operator: no fall beyond the slack at any edge between two neighbours.

Points an eighth of an octave apart are asked; where time falls between two of them, bisection finds the edge.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any

import scenarios

from chip import ops
from chip.predict import operator, request
from chip.types import ChipError

NAME = "edges"
LIMIT_S = 20.0  # a walk is some hundred predictions
SLACK = 0.005
WALKS = {"batch": 1024, "prompt": 65_536, "output": 2048}
FIXED = ("head_dim", "v_head_dim", "top_k", "groups", "kernel", "stride")  # other shapes, other kernels


def case(draw: Random) -> dict[str, Any]:
    if draw.random() < 0.5:
        axis = draw.choice(sorted(WALKS))
        question = {**scenarios.scenario(draw), "tp": 1, "batch": draw.choice((1, 8, 32)), "prompt": 512, "output": 32}
        metric = (
            "e2e_ms" if axis == "output" else draw.choice(("ttft_ms", "tpot_ms") if axis == "batch" else ("ttft_ms",))
        )
        if axis == "prompt" and draw.random() < 0.5:
            metric = "tpot_ms"  # a longer context
        return {"what": "predict", "axis": axis, "question": question, "metric": metric}
    question = scenarios.operator(draw)
    axes = [
        f.name
        for f in dataclasses.fields(ops.get(question["op"]))  # type: ignore[arg-type]
        if f.type == "int" and f.name in question and f.name not in FIXED
    ]
    return {"what": "estimate", "axis": draw.choice(axes) if axes else "", "question": question}


def check(case: dict[str, Any]) -> str:
    axis, question = case["axis"], case["question"]
    if not axis:
        return ""
    most = WALKS.get(axis, 65_536) if case["what"] == "predict" else 65_536

    def time_of(value: int) -> float | None:
        asked = {**question, axis: value}
        try:
            if case["what"] == "estimate":
                return float(operator.answer(asked)["us"])
            found = request.answer(asked)
        except ChipError:
            return None
        return None if any("measured point" in n for n in found["notes"]) else float(found[case["metric"]])

    return walk(time_of, most, axis)


def walk(time_of: Callable[[int], float | None], most: int, axis: str) -> str:
    before: tuple[int, float] | None = None
    value = 1
    while value <= most:
        took = time_of(value)
        if took is None:
            before = None
        else:
            if before and took < before[1] * (1 - SLACK):
                return _edge(time_of, before, (value, took), axis)
            before = (value, took)
        value = max(value + 1, round(value * 2**0.125))
    return ""


def _edge(time_of: Callable[[int], float | None], a: tuple[int, float], b: tuple[int, float], axis: str) -> str:
    """The two neighbours between which most of the fall lies."""
    low, high = a, b
    while high[0] - low[0] > 1:
        middle = (low[0] + high[0]) // 2
        took = time_of(middle)
        if took is None:
            break
        if low[1] - took > took - high[1]:
            high = (middle, took)
        else:
            low = (middle, took)
    return (
        f"{axis} {a[0]} -> {b[0]}: {a[1]:.5g} -> {b[1]:.5g} ({b[1] / a[1] - 1:+.1%}); "
        f"most of it at {low[0]} -> {high[0]}: {low[1]:.5g} -> {high[1]:.5g}"
    )
