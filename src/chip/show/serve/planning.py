"""Which GPU, by the request rate: for every GPU, split and precision the highest rate that keeps the limits, as
`chip plan` finds it, and what a million tokens cost there; best first.

That takes about a second a choice. So an answer comes with what could be looked at within a moment, and names the GPUs
that are `pending`: asked again, it goes on. What was found is remembered.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import product
from typing import Any

from chip.decoders.decoder import Decoder
from chip.question import complete, count_of, question_of
from chip.show.serve import sweep
from chip.show.serve.names import gpu_of
from chip.show.serve.ranking import limits_of, prices_of, with_nearest
from chip.show.serve.traffic import GIVEN, MOST_REQUESTS, PERCENTILE, targets_of, workload_of
from chip.simulator import plan
from chip.simulator.highest_rate import InSteps, Promise
from chip.simulator.plan import REQUESTS, PlanChoice, Task, exploring, priced, ranked
from chip.simulator.setup import SEED, Fleet
from chip.simulator.slo import Target
from chip.simulator.workload import Workload
from chip.types import ChipError

SCHEMA = "chip.rate_ranking/1"
MOMENT_S = 0.5  # after which no other simulation is begun
REMEMBERED = 5000
AXES = ("gpu", "engine", "prompt", "output", "dtype", "kv_dtype", "tp", "pp", "ep")
ONE = ("engine", "prompt", "output")  # values of which there is one
OWN = ("workload", "limits", "by", "prices", "rate", "requests", "prune")
FIGURES = ("max_rate_per_s", "tokens_per_s_per_gpu")
Row = dict[str, Any]
Key = tuple[Any, ...]

_explored: dict[Key, PlanChoice] = {}
_begun: dict[Key, InSteps[PlanChoice]] = {}


def rank(question: Any) -> dict[str, Any]:
    """`{"model": "llama-3.1-8b", "gpu": ["h100", "h200"], "tp": [1, 2], "limits": {"tpot_ms": 20}}`; `rate` null for
    each at its highest, `workload` as of `/api/traffic`."""
    return whole(question, [part(question)])


def part(question: Any) -> dict[str, Any]:
    """Choices in no order; those of some GPUs can be found apart from those of others."""
    choices, left_out, pending = [], 0, list[str]()
    until, went_on = time.monotonic() + MOMENT_S, False
    for gpu, found in _of_gpus(question):
        for choice in found:
            if choice is None:
                if went_on and time.monotonic() > until:
                    pending.append(gpu)
                    break
                went_on = True
            elif choice.status == "worse":
                left_out += 1
            else:
                choices.append(asdict(choice))
    return {"choices": choices, "left_out": left_out, "pending": pending}


def steps_of(question: Any) -> Iterator[object]:
    """Goes through all choices, so that they are remembered."""
    for _, found in _of_gpus(question):
        yield from found


def _of_gpus(question: Any) -> Iterator[tuple[str, Iterator[PlanChoice | None]]]:
    """Each GPU with its choices; a None comes before each simulation."""
    decoder, axes, p = _understood(question)
    prune = bool(question.get("prune", False))
    for gpu in axes["gpu"]:
        yield gpu, _of_gpu(decoder, {**axes, "gpu": [gpu]}, p, prune)


def _of_gpu(
    decoder: Decoder, axes: Mapping[str, list[Any]], p: Mapping[str, Any], prune: bool
) -> Iterator[PlanChoice | None]:
    others = [name for name in axes if name != "tp"]
    for values in product(*(axes[name] for name in others)):
        before: PlanChoice | None = None
        for i, tp in enumerate(axes["tp"]):
            asked = {**dict(zip(others, values)), "tp": tp}
            try:
                q = question_of(
                    complete({"model": decoder.name, **asked, "gpu": gpu_of(asked["gpu"])}), decoder
                ).with_formats()
            except ChipError as e:
                yield PlanChoice(str(asked["gpu"])[:80], tp, str(asked["dtype"])[:20], "refused", str(e))
                continue
            beats = before.max_rate_per_s * q.gpus / before.gpus_each if prune and before else 0.0
            key = (q, p["workload"], p["requests"], p["targets"], beats)
            if key not in _explored:
                promise = Promise(Fleet(q), _supply(p["workload"], p["requests"]), p["requests"], p["targets"])
                yield from _explore(key, Task(promise, True, beats))
            choice = _explored[key]
            if choice.status == "worse":
                yield from [choice] * (len(axes["tp"]) - i)
                break
            yield choice
            before = choice if choice.status == "ok" else None


def _explore(key: Key, task: Task) -> Iterator[None]:
    """A step further each time; where others went on before, from there."""
    if len(_explored) >= REMEMBERED:
        _explored.clear()
        _begun.clear()
    while key not in _explored:
        yield None
        if key in _explored:  # another went on meanwhile
            return
        steps = _begun.setdefault(key, exploring(task))
        try:
            next(steps)
        except StopIteration as end:
            _explored[key] = end.value
            del _begun[key]
        except BaseException:  # it took too long: it begins anew
            del _begun[key]
            raise


@lru_cache(maxsize=8)
def _supply(workload: str, requests: int) -> Workload:
    return plan.supply(workload, requests, SEED)


def whole(question: Any, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    decoder, axes, p = _understood(question)
    prices, by, rate = prices_of(question.get("prices", {})), question.get("by", plan.BY[0]), question.get("rate")
    if by not in plan.BY:
        raise ChipError(f"by must be one of {', '.join(plan.BY)}, got {str(by)[:40]!r}")
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < 1e9):
        raise ChipError(f"rate must be requests a second above 0, or null, got {str(rate)[:40]!r}")
    choices = [priced(_choice(c), rate, prices) for part in parts for c in part["choices"]]
    rows = [_row(c, rate, p["targets"]) for c in ranked(choices, rate, by)]
    rows = with_nearest(decoder, rows, axes["engine"][0], p["prompt"], p["output"])
    pending = {gpu for part in parts for gpu in part["pending"]}
    good, refused = (sum(c.status == status for c in choices) for status in ("ok", "refused"))
    return {
        "schema": SCHEMA,
        "model": decoder.name,
        "by": by,
        "workload": p["workload"],
        "rate_per_s": rate,
        "slo": {t.name: t.seconds * 1e3 for t in p["targets"]},
        "requests": p["requests"],
        "good": good,
        "not_good": len(rows) - good - refused,
        "refused": refused,
        "left_out": sum(part["left_out"] for part in parts),
        "ties": sum(row.get("place") == 1 for row in rows[1:]),
        "unsure": sum(row.get("may_lead", False) for row in rows),
        "pending": [gpu for gpu in axes["gpu"] if gpu in pending],
        "rows": rows,
    }


def _choice(found: Mapping[str, Any]) -> PlanChoice:
    span = found["interval"]
    return PlanChoice(**{**found, "interval": span and (span[0], span[1])})


def _row(c: PlanChoice, rate: float | None, targets: Sequence[Target]) -> Row:
    """As a row of `/api/rank`: times are of the 99th percentile at the highest rate, `batch` the requests in flight."""
    row: Row = {"gpu": c.gpu, "tp": c.tp, "pp": c.pp, "ep": c.ep, "gpus": c.gpus_each, "dtype": c.dtype}
    if c.status == "refused":
        return {**row, "error": c.reason}
    row |= {"kv_dtype": c.kv_dtype, "rests_on": c.rests_on, "place": c.place, "tie": c.tied, "may_lead": c.may_lead}
    row |= {f"{name}_ms": c.at_rate_s[f"{name}_{PERCENTILE}"] * 1e3 for name in plan.SHOWN}
    row["missed"] = [f"{t.metric}_ms" for t in targets if c.at_rate_s[t.name] > t.seconds]
    row["interval"] = {}
    if c.status != "ok":
        return {**plan.rounded(row), "reason": c.reason}
    row |= {name: getattr(c, name) for name in FIGURES}
    row |= {"batch": max(1, round(c.in_flight)), "requests": c.requests, "limited_by": c.limited_by}
    row["energy_j_per_token"] = c.joules_per_output_token
    row["tokens_per_s_per_user"] = 1e3 / row["tpot_ms"] if row["tpot_ms"] else None
    assert c.interval is not None
    low, high = (end / c.max_rate_per_s for end in c.interval)
    row["interval"] = {name: (row[name] * low, row[name] * high) for name in FIGURES}
    if rate is not None:
        row |= {"replicas": c.replicas, "fleet_gpus": c.gpus, "sure_fleet_gpus": c.sure_gpus}
    if c.cost_per_million_tokens is not None:
        row |= {"cost_per_hour": c.cost_per_hour, "cost_per_million_tokens": c.cost_per_million_tokens}
        if rate is None:
            cost = c.cost_per_million_tokens
            row["interval"]["cost_per_million_tokens"] = (cost / high, cost / low if low else None)
    shorter: Row = plan.rounded(row)
    return shorter


def _understood(question: Any) -> tuple[Decoder, dict[str, list[Any]], dict[str, Any]]:
    """The model, the axes of the choices, and the promise that all of them are held to."""
    decoder, axes = sweep.understood(question, (*AXES, *OWN))
    for name in ONE:
        if len(axes[name]) != 1:
            raise ChipError(f"{name} must be one value here")
    sweep.check_points(axes)
    asked = {"workload": GIVEN, **question, **{name: axes[name][0] for name in ("prompt", "output")}}
    for name in ("prompt", "output"):
        count_of(asked, name)
    limits = limits_of(question.get("limits", {}))
    if not limits:
        raise ChipError("limits: give ttft_ms, tpot_ms or e2e_ms; without any a rate has no end (/api/rank: a burst)")
    requests = question.get("requests", REQUESTS)
    if isinstance(requests, bool) or not isinstance(requests, int) or not 1 <= requests <= MOST_REQUESTS:
        raise ChipError(f"requests must be a whole number from 1 to {MOST_REQUESTS}")
    (prompt,), (output,) = axes.pop("prompt"), axes.pop("output")  # of the traffic
    return (
        decoder,
        axes,
        {
            "workload": workload_of(asked),
            "requests": requests,
            "targets": targets_of(limits),
            "prompt": prompt,
            "output": output,
        },
    )
