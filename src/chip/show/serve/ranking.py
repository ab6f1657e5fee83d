"""Which GPU: every GPU, split and precision for one workload, best first.

Each is asked at the largest batch that fits and keeps the limits on latency, or at the batch that was given. Memory and
latency only grow with the batch, the time to the first token about in proportion, and a GPU is about as much faster
than the one before it as its products are: one or two batches have to be tried. With
`prune`, larger splits are left out once one gives less per GPU than the split before it. The order goes by the end of
the interval that one can count on (`chip.standing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import ceil, floor, inf, log2
from typing import Any

from chip.decoders.decoder import Decoder
from chip.dtypes import PRECISIONS
from chip.predictor.basis import are_doubted
from chip.predictor.standing import Figure, places
from chip.predictor.validated_runs import nearest
from chip.show.serve import sweep
from chip.show.serve.names import gpu_of
from chip.simulator import prices
from chip.types import ChipError, Scenario

SCHEMA = "chip.ranking/1"
LARGEST = "largest"
BATCHES = tuple(2**n for n in range(11))  # 1 to 1024
LIMITS = ("ttft_ms", "tpot_ms", "e2e_ms")
BY = {"throughput": "tokens_per_s_per_gpu", "cost": "cost_per_million_tokens", "energy": "energy_j_per_token"}
OWN = ("limits", "by", "prices", "prune")
SPLITS = (1, 2, 4, 8)
# What the page shows when it is opened without a question; `opening` has the prices as well.
START: dict[str, Any] = {
    "model": "llama-3.1-8b", "gpu": "h200", "engine": "vllm", "dtype": "auto", "tp": 1, "batch": 8, "prompt": 1024,
    "output": 128, "ttft": 2000, "tpot": 50, "precisions": "auto,fp8", "by": "cost",
}  # fmt: skip
TRIES = 5  # predictions for one row, where the batch is to be found
FULL_TOKENS = 4096  # of prompts: all products are compute-bound
TWICE = 1.8  # what twice as many of those take at least
Row = dict[str, Any]


@lru_cache(maxsize=1)
def opening() -> dict[str, Any]:
    """`START` at the example's prices, as they are typed."""
    return {**START, "prices": ", ".join(f"{gpu}:{price:g}" for gpu, price in prices.read(prices.EXAMPLE).items())}


def rank(question: Any) -> dict[str, Any]:
    """`{"model": "llama-3.1-8b", "gpu": ["h100", "h200"], "tp": [1, 2], "limits": {"tpot_ms": 20}}`; `batch` may be
    "largest"."""
    return whole(question, [part(question)])


def part(question: Any) -> dict[str, Any]:
    """Rows in no order; those of some GPUs can be found apart from those of others."""
    found = list(rows_of(question))
    return {"rows": [row for row, _ in found], "left_out": sum(left_out for _, left_out in found)}


def rows_of(question: Any) -> Iterator[tuple[Row, int]]:
    """One row after the other, and how many larger splits are left out after it."""
    decoder, axes = sweep.understood(question, (*sweep.AXES, *OWN))
    limits, per_hour = limits_of(question.get("limits", {})), prices_of(question.get("prices", {}))
    search = axes["batch"] == [LARGEST]
    sweep.check_points(axes, TRIES if search else 1)
    prune = bool(question.get("prune", False))
    splits = axes.pop("tp")
    near: dict[tuple[Any, ...], Row] = {}  # of each precision: the last row that was found
    for values in product(*axes.values()):
        before: Row | None = None
        for i, tp in enumerate(splits):
            asked = {**dict(zip(axes, values)), "tp": tp}
            if search:
                others = tuple(value for key, value in asked.items() if key not in ("gpu", "tp"))
                found = _largest(decoder, asked, limits, near.get(others))
                if "error" not in found:
                    near[others] = found
            else:
                found = {**asked, **sweep.answer(decoder, asked)}
            row = _judged(found, limits, per_hour)
            worse = prune and before is not None and _worse(row, before, limits)
            yield row, len(splits) - i - 1 if worse else 0
            if worse:
                break
            before = row


def whole(question: Any, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    decoder, axes = sweep.understood(question, (*sweep.AXES, *OWN))
    points = sweep.check_points(axes, TRIES if axes["batch"] == [LARGEST] else 1)
    limits, by = limits_of(question.get("limits", {})), question.get("by", "throughput")
    if by not in BY:
        raise ChipError(f"by must be one of {', '.join(BY)}, got {str(by)[:40]!r}")
    left_out = sum(part["left_out"] for part in parts)
    rows = sorted([row for part in parts for row in part["rows"]], key=lambda row: _order(row, by))
    rows = _placed(rows, by, limits)
    found = {"schema": SCHEMA, "model": decoder.name, "by": by, "limits": limits, "points": points}
    refused, good = sum("error" in row for row in rows), sum(_good(row, limits) for row in rows)
    found |= {"good": good, "not_good": len(rows) - good - refused, "refused": refused, "left_out": left_out}
    found |= {"ties": sum(row.get("place") == 1 for row in rows[1:]), "unsure": sum("may_lead" in row for row in rows)}
    found["measured"] = [] if question.get("config") else sweep.measured_beside(decoder.name, rows, axes["output"])
    return {**found, "rows": with_nearest(decoder, rows, axes["engine"][0], axes["prompt"][0], axes["output"][0])}


def with_nearest(decoder: Decoder, rows: list[Row], engine: str, prompt: int, output: int) -> list[Row]:
    """The same, the first with the run nearest to it that was held against a prediction: how sure one can be."""
    if not rows or rows[0].get("place") != 1:
        return rows
    first = rows[0]
    kv_dtype = first["kv_dtype"] or PRECISIONS[first["dtype"]].activation
    split = (first["tp"], kv_dtype, first["pp"], first["ep"])
    s = Scenario(first["batch"], prompt, output, first["dtype"], *split)
    return [{**first, "nearest_validated": nearest(decoder, first["gpu"], engine, s)[:1]}, *rows[1:]]


def _placed(rows: list[Row], by: str, limits: Mapping[str, float]) -> list[Row]:
    """Good rows with their place, whether another row shares it, and whether one that is behind the first may be better
    than it: its interval reaches beyond the first one's estimate."""
    figures = [figure for row in rows if _good(row, limits) and (figure := _figure(row, by))]
    out = list(rows)
    for i, (place, shared) in enumerate(places(figures)):
        out[i] = {**rows[i], "place": place, "tie": shared}
        if place > 1 and figures[i].may_beat(figures[0]):
            out[i]["may_lead"] = True
    return out


def _figure(row: Row, by: str) -> Figure | None:
    """What a row is ranked by; None where it is not known."""
    value, span = row.get(BY[by]), row["interval"].get(BY[by])
    if value is None:
        return None
    low, high = span or (value, value)
    return Figure(value, low, high, by == "throughput")


def _worse(row: Row, before: Row, limits: Mapping[str, float]) -> bool:
    """Whether a split gives less per GPU than the one before it, where both are good."""
    if not (_good(row, limits) and _good(before, limits)):
        return False
    return bool(row["tokens_per_s_per_gpu"] < before["tokens_per_s_per_gpu"])


def _largest(decoder: Decoder, asked: Mapping[str, Any], limits: Mapping[str, float], near: Row | None) -> Row:
    """The row of the largest batch that fits and keeps the limits, that of batch 1 where none does. `near`: a row of
    another GPU or split, from which this one's batch is guessed."""
    room = sweep.most_at_once(decoder, {**asked, "batch": BATCHES[0]})
    good, bad = -1, max(i for i, batch in enumerate(BATCHES) if batch <= max(1, room)) + 1
    tried: dict[int, Row] = {}
    i = _guess(asked, near, limits) if near and room else bad // 2
    while good + 1 < bad:
        i = min(max(i, good + 1), bad - 1)
        given = {**asked, "batch": BATCHES[i]}
        row = tried[i] = {**given, **sweep.answer(decoder, given)}
        if _good(row, limits):
            good, i = i, i + _step(row, limits, (bad - i + 1) // 2)
            if _fills(row, limits):
                break
        else:
            bad, i = i, i - _step(row, limits, (i - good + 1) // 2)
    return tried[max(good, 0)]


def _guess(asked: Mapping[str, Any], near: Row, limits: Mapping[str, float]) -> int:
    """As if a GPU were as much faster than another as its products are."""
    rate = sweep.product_rate(asked["gpu"]) * sweep.gpus_of(asked)
    faster = rate / (sweep.product_rate(near["gpu"]) * near["gpus"])
    room = limits["ttft_ms"] / near["ttft_ms"] if "ttft_ms" in limits else 1.0
    return floor(log2(near["batch"] * faster * room))


def _step(row: Row, limits: Mapping[str, float], half: int) -> int:
    """Batches to the one that may be the largest: the time to the first token grows about as they do. `half` of those
    that are left where that says nothing."""
    most, took = limits.get("ttft_ms"), row.get("ttft_ms")
    if not most or not took:
        return half
    off = log2(most / took)
    return max(1, floor(off) if off > 0 else ceil(-off))


def _fills(row: Row, limits: Mapping[str, float]) -> bool:
    """Whether twice as many sequences surely miss the limit: prompts that fill the GPU take twice as long."""
    full = row["batch"] * row["prompt"] >= FULL_TOKENS
    return bool(full and TWICE * row["ttft_ms"] > limits.get("ttft_ms", inf))


def _good(row: Row, limits: Mapping[str, float]) -> bool:
    return "error" not in row and row["memory"]["fits"] and not _missed(row, limits)


def _missed(row: Row, limits: Mapping[str, float]) -> list[str]:
    return [name for name, most in limits.items() if row.get(name) is not None and row[name] > most]


def _judged(row: Row, limits: Mapping[str, float], per_hour: Mapping[str, float]) -> Row:
    if "error" in row:
        return row
    row = {**row, "missed": _missed(row, limits)}
    price = per_hour.get(prices.name_of(row["gpu"]))
    if price is not None:
        whole = price * row["gpus"] / 3600 * 1e6
        row["price_per_gpu_hour"] = price
        row["cost_per_million_tokens"] = sweep.short(whole / row["tokens_per_s"])
        low, high = row["interval"]["tokens_per_s"]
        span = [sweep.short(whole / high), sweep.short(whole / low)]
        row["interval"] = {**row["interval"], "cost_per_million_tokens": span}
    return row


def _order(row: Row, by: str) -> tuple[Any, ...]:
    """What fits and keeps the limits first, the best of them on top, behind them what is not usable; errors last."""
    if "error" in row:
        return (3, False, (0.0, 0.0), row["gpu"], 0)
    figure = _figure(row, by)
    group = 2 if not row["memory"]["fits"] else 1 if row["missed"] else 0
    doubted = are_doubted(row["notes"])
    return (group, doubted, figure.order if figure else (inf, inf), row["gpu"], row["gpus"])


def limits_of(given: Any) -> dict[str, float]:
    return _numbers(given, "limits", "a time in milliseconds", LIMITS)


def prices_of(given: Any) -> dict[str, float]:
    """By the names that GPUs have here."""
    found = _numbers(given, "prices", "a price for an hour of one GPU", None)
    return {prices.name_of(gpu_of(gpu)): price for gpu, price in found.items()}


def _numbers(given: Any, what: str, meaning: str, known: tuple[str, ...] | None) -> dict[str, float]:
    if not isinstance(given, dict):
        raise ChipError(f"{what} must be an object, got {type(given).__name__}")
    for key, value in given.items():
        if known and key not in known:
            raise ChipError(f"{what} has no {str(key)[:40]!r}; known: {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e12:
            raise ChipError(f"{what}: {str(key)[:40]} must be {meaning} above 0, got {str(value)[:40]!r}")
    return {str(key): float(value) for key, value in given.items()}
