"""Predictions obey physics: more work never takes less time, two GPUs are at most twice as fast, no peak is passed.

Every number is another combination of a bundled GPU, model, engine and precision, until all were tried. It asks
`chip.predictor.request.answer` alone, so that it holds for any predictor behind it.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import scenarios

from chip.dtypes import precision
from chip.hardware import gpus
from chip.predictor import request
from chip.types import ChipError

NAME = "physics"
LIMIT_S = 5.0
IN_ORDER = True
COUNTED: Counter[str] = Counter()
SLACK = 0.03  # by which more work may take less time
TWICE = 2.05  # as fast are two GPUs at most
# in a note: the answer says that measurements, or a graph's padding, show why
REASONS = ("measured points", "without padding")
ENDING = "TPOT is the mean of all steps"  # in a note: the last steps are of fewer requests than the others
AXES = ("batch", "prompt", "output")
CACHED = 4  # times the L2 cache: what moves more cannot come from it


def count() -> int:
    return len(scenarios.combinations())


def case(draw: Random, number: int) -> dict[str, Any]:
    sizes = {axis: scenarios.size(draw, most) for axis, most in scenarios.LIMITS.items()}
    more = {axis: draw.choice(("one", "double")) for axis in draw.sample(AXES, 2)}
    return {"question": {**scenarios.combination(number), **sizes, "tp": 1}, "more": more}


def check(case: dict[str, Any]) -> str:
    question = case["question"]
    try:
        found = request.answer(question)
    except ChipError:
        COUNTED["refused"] += 1
        return ""  # no such thing to predict
    COUNTED["predicted"] += 1
    if why := peaks(found) or memory(found):
        return why
    for axis, step in case["more"].items():
        more = question[axis] + 1 if step == "one" else 2 * question[axis]
        if why := no_less(found, request.answer({**question, axis: more}), axis):
            return why
    try:
        two = request.answer({**question, "tp": 2})
    except ChipError:
        return ""  # it cannot be split, or there is no link
    COUNTED["on two GPUs"] += 1
    return two_gpus(found, two) or peaks(two) or memory(two)


def no_less(one: dict[str, Any], more: dict[str, Any], axis: str) -> str:
    """Beyond the slack, unless the answer of the smaller one itself says why; TPOT may, where
    that of the larger one says that its last steps are of fewer requests: the whole takes no less all the same."""
    if explained(one):
        return ""
    keys = {"batch": ("ttft_ms", "tpot_ms", "e2e_ms"), "prompt": ("ttft_ms", "e2e_ms"), "output": ("e2e_ms",)}[axis]
    for key in keys:
        if key == "tpot_ms" and any(ENDING in note for note in more["notes"]):
            continue
        if one[key] is not None and more[key] is not None and more[key] < one[key] * (1 - SLACK):
            change = more[key] / one[key] - 1
            return f"{axis} {one[axis]} -> {more[axis]}: {key} {one[key]:.4g} -> {more[key]:.4g} ({change:+.1%})"
    return ""


def explained(found: dict[str, Any]) -> bool:
    """Whether the answer itself says why more may take less time: measurements, or padding. It may fall after this one,
    to no less than what came before."""
    return any(reason in note for note in found.get("notes", ()) for reason in REASONS)


def two_gpus(one: dict[str, Any], two: dict[str, Any]) -> str:
    for key in ("ttft_ms", "tpot_ms"):
        if one[key] is not None and one[key] > TWICE * two[key]:
            return f"two GPUs are {one[key] / two[key]:.2f} times as fast: {key} {one[key]:.4g} -> {two[key]:.4g}"
    return ""


def peaks(found: dict[str, Any]) -> str:
    """Each operator against the datasheet: the bandwidth where its bytes cannot lie in L2, the rate of products."""
    name = gpus.find(found["gpu"]).name
    if name not in gpus.spec_names():
        return ""
    spec, p = gpus.spec(name), precision(found["dtype"])
    bandwidth = spec.ceilings["hbm"].value
    rates = {n: c.value for n, c in spec.ceilings.items() if n.startswith("matmul_")}
    plain = p.weight == p.activation  # quantised ones run as whatever the GPU has
    rate = rates.get(f"matmul_{p.matmul}", max(rates.values())) if plain else max(rates.values())
    for phase, rows in found["breakdown"].items():
        for row in rows or ():
            seconds = row["us"] * 1e-6
            if row["flops"] > rate * seconds * (1 + SLACK) and row["flops"]:
                return f"{phase} {row['role']}: {row['flops'] / max(seconds, 1e-12):.3g} FLOP/s, peak {rate:.3g}"
            if phase == "tpot" and any(ENDING in note for note in found["notes"]):
                continue  # the mean of steps, of which some find a part in L2
            cold = row["count"] and row["bytes"] / row["count"] > CACHED * spec.l2_bytes.value
            if cold and row["bytes"] > bandwidth * seconds * (1 + SLACK):
                return f"{phase} {row['role']}: {row['bytes'] / max(seconds, 1e-12):.3g} B/s, peak {bandwidth:.3g}"
    return ""


def memory(found: dict[str, Any]) -> str:
    """A verdict on memory that the figures beside it explain."""
    m = found["memory"]
    if m["fits"] != (m["total_bytes"] <= m["usable_bytes"] <= m["capacity_bytes"]):
        return f"fits: {m['fits']}, and it needs {m['total_bytes']:.4g} of {m['usable_bytes']:.4g} usable bytes"
    if not m["fits"] and not any("does not fit: needs" in n and "the engine uses" in n for n in found["notes"]):
        return f"said not to fit without saying why: needs {m['total_bytes']:.4g} of {m['usable_bytes']:.4g} bytes"
    return ""


def smaller(case: dict[str, Any]) -> list[dict[str, Any]]:
    q = case["question"]
    fewer = [{**q, a: v} for a in AXES for v in (1, q[a] // 2) if 1 <= v < q[a]]
    fewer_rules = [{**case, "more": {k: v for k, v in case["more"].items() if k != a}} for a in case["more"]]
    return fewer_rules + [{**case, "question": f} for f in fewer]
