"""Predictions obey physics: more work never takes less time, two GPUs are at most twice as fast, no peak is passed.

It asks `chip.predict.request.answer` alone, so that it holds for any predictor behind it.
"""

from __future__ import annotations

from random import Random
from typing import Any

import scenarios

from chip import hardware
from chip.predict import request
from chip.types import ChipError

NAME = "physics"
LIMIT_S = 2.0
SLACK = 0.005  # by which more work may take less time
TWICE = 2.05  # as fast are two GPUs at most
EXCUSE = "measured point"  # in a note: the answer says that a measurement shows why
RULES = ("batch", "prompt", "output", "tp", "peaks", "memory")


def case(draw: Random) -> dict[str, Any]:
    question = scenarios.scenario(draw)
    rule = draw.choice(RULES)
    if rule == "tp":
        question["tp"] = 1
    return {"rule": rule, "question": question, "step": draw.choice(("one", "double"))}


def check(case: dict[str, Any]) -> str:
    question, rule = case["question"], case["rule"]
    try:
        found = request.answer(question)
        if rule == "peaks":
            return peaks(found)
        if rule == "memory":
            return memory(found)
        if rule == "tp":
            return two_gpus(found, request.answer({**question, "tp": 2}))
        more = question[rule] + 1 if case["step"] == "one" else 2 * question[rule]
        return no_less(found, request.answer({**question, rule: more}), rule)
    except ChipError:
        return ""  # no such thing to predict


def no_less(one: dict[str, Any], more: dict[str, Any], axis: str) -> str:
    """Beyond the slack, unless the answer itself says that a measurement shows why."""
    if any(EXCUSE in note for note in (*one["notes"], *more["notes"])):
        return ""
    keys = {"batch": ("ttft_ms", "tpot_ms", "e2e_ms"), "prompt": ("ttft_ms", "e2e_ms"), "output": ("e2e_ms",)}[axis]
    for key in keys:
        if one[key] is not None and more[key] is not None and more[key] < one[key] * (1 - SLACK):
            change = more[key] / one[key] - 1
            return f"{axis} {one[axis]} -> {more[axis]}: {key} {one[key]:.4g} -> {more[key]:.4g} ({change:+.1%})"
    return ""


def two_gpus(one: dict[str, Any], two: dict[str, Any]) -> str:
    for key in ("ttft_ms", "tpot_ms"):
        if one[key] is not None and one[key] > TWICE * two[key]:
            return f"two GPUs are {one[key] / two[key]:.2f} times as fast: {key} {one[key]:.4g} -> {two[key]:.4g}"
    return ""


def peaks(found: dict[str, Any]) -> str:
    """Each operator against the datasheet: the bandwidth where its bytes cannot lie in L2, the rate of products."""
    name = hardware.find(found["gpu"]).name
    if name not in hardware.spec_names():
        return ""
    spec = hardware.spec(name)
    bandwidth, rates = (
        spec.ceilings["hbm"].value,
        [c.value for n, c in spec.ceilings.items() if n.startswith("matmul_")],
    )
    for phase, rows in found["breakdown"].items():
        for row in rows or ():
            seconds = row["us"] * 1e-6
            if row["flops"] > max(rates) * seconds * (1 + SLACK) and row["flops"]:
                return f"{phase} {row['role']}: {row['flops'] / max(seconds, 1e-12):.3g} FLOP/s, peak {max(rates):.3g}"
            cold = row["count"] and row["bytes"] / row["count"] > 4 * spec.l2_bytes.value
            if cold and row["bytes"] > bandwidth * seconds * (1 + SLACK):
                return f"{phase} {row['role']}: {row['bytes'] / max(seconds, 1e-12):.3g} B/s, peak {bandwidth:.3g}"
    return ""


def memory(found: dict[str, Any]) -> str:
    """A verdict on memory that the figures beside it explain."""
    m = found["memory"]
    if m["fits"] and m["total_bytes"] > m["capacity_bytes"]:
        return f"said to fit: {m['total_bytes']:.4g} of {m['capacity_bytes']:.4g} bytes"
    explained = m["total_bytes"] > m["capacity_bytes"] or any("reserve" in n or "usable" in n for n in found["notes"])
    if not m["fits"] and not explained:
        return f"said not to fit without saying why: needs {m['total_bytes']:.4g} of {m['capacity_bytes']:.4g} bytes"
    return ""


def smaller(case: dict[str, Any]) -> list[dict[str, Any]]:
    q = case["question"]
    fewer = [{**q, a: v} for a in ("batch", "prompt", "output") for v in (1, q[a] // 2) if 1 <= v < q[a]]
    return [{**case, "question": f} for f in fewer]
