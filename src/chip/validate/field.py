"""Published live traffic, replayed: every row of the silicon sample through the simulated engine that served it.

A deployment's rows are one task: what was asked of its predictor once is known to all of them.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import gcd
from statistics import fmean as mean
from typing import Any, NamedTuple

from chip import engines
from chip.engines import number
from chip.question import Question
from chip.simulator import figures
from chip.simulator.disaggregated import serve_disaggregated
from chip.simulator.fleet import ServedRequests
from chip.simulator.intervals import spreads_of
from chip.simulator.jobs import Pool, spread_out
from chip.simulator.setup import Fleet, Setup, behind_server, run, setup
from chip.simulator.surface import PLAIN, Factors
from chip.simulator.workload import Workload
from chip.types import ChipError
from chip.validate.checkpoints import checkpoint
from chip.validate.recipes import ROUNDS, Recipe, recipe, split_as_run, version
from chip.validate.silicon import SiliconRow, Split

FEW, MANY = 3, 480  # rounds of each user that are replayed at least, and requests beyond which no more are
ONE_RACK = ("gb200", "gb300")  # whose GPUs reach each other over NVLink


class Latency(NamedTuple):
    """Means over requests, and their 90 % intervals."""

    ttft_s: float
    tpot_s: float
    ttft_low_s: float
    ttft_high_s: float
    tpot_low_s: float
    tpot_high_s: float


@dataclass(frozen=True, slots=True)
class ReplayedRow:
    """A row with its answer, or why there is none."""

    row: SiliconRow
    latency: Latency | None
    refused: str = ""


def replay(rows: Sequence[SiliconRow], pool: Pool | None = None) -> list[ReplayedRow]:
    """Every row, in order. Rows of one deployment share a task."""
    tasks: dict[Any, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        tasks[row.deployment, recipe(row).kv_dtype].append(i)
    order = sorted(tasks.values(), key=len, reverse=True)
    answers = spread_out(replay_deployment, [[rows[i] for i in places] for places in order], pool)
    placed = {i: answer for places, found in zip(order, answers) for i, answer in zip(places, found)}
    return [placed[i] for i in range(len(rows))]


def replay_deployment(rows: Sequence[SiliconRow]) -> list[ReplayedRow]:
    return [_answered(row) for row in rows]


def _answered(row: SiliconRow) -> ReplayedRow:
    try:
        return ReplayedRow(row, _latency(row))
    except ChipError as e:
        return ReplayedRow(row, None, str(e))


def _latency(row: SiliconRow) -> Latency:
    steps = recipe(row)
    fleet = _disaggregated(row, steps) if row.prefill else fleet_of(row, steps, split_as_run(row))
    parts = parts_of(fleet, row.users)
    traffic = workload(row, steps, row.users // parts)

    def means(factors: Factors) -> tuple[float, float]:
        made = setup(fleet, factors)
        served = serve_disaggregated(made, fleet, traffic, parts) if fleet.before else run(made, fleet, traffic)
        return _means(served, traffic)

    return _spread(means, *_edges(setup(fleet), traffic))


def parts_of(fleet: Fleet, users: int) -> int:
    """Into how many equal parts a fleet and its users can be cut, where prompts have workers of their own."""
    if not fleet.before:
        return 1
    return gcd(fleet.before.replicas * fleet.before.lockstep, fleet.replicas * fleet.lockstep, users)


def _edges(made: Setup, traffic: Workload) -> tuple[Factors, Factors]:
    """All times as fast, and as slow, as the predictor says they may be."""
    spreads = spreads_of(made, traffic)
    fast, slow = (Factors(*(getattr(spread, edge) for spread in spreads)) for edge in ("low", "high"))
    return fast, slow


def _spread(means: Callable[[Factors], tuple[float, float]], fast: Factors, slow: Factors) -> Latency:
    (ttft_s, tpot_s), low, high = means(PLAIN), means(fast), means(slow)
    return Latency(ttft_s, tpot_s, min(low[0], ttft_s), max(high[0], ttft_s), min(low[1], tpot_s), max(high[1], tpot_s))


def _means(served: ServedRequests, traffic: Workload) -> tuple[float, float]:
    """Of all rounds. All users begin at once, so that the first round waits longest; it counts as one of all."""
    if len(served.rejected) == len(traffic):
        raise ChipError("no request was answered: prompts are longer than the engine's context")
    first, later = range(traffic.users), range(traffic.users, len(traffic))
    of = [
        [figures.latency_s(served, i, metric) for i in requests if served.last_s[i] >= 0]
        for metric in ("ttft", "tpot")
        for requests in (first, later)
    ]
    ttft_s, tpot_s = ((mean(a) + (ROUNDS - 1) * mean(b)) / ROUNDS for a, b in (of[:2], of[2:]))
    return ttft_s, tpot_s


def _disaggregated(row: SiliconRow, steps: Recipe) -> Fleet:
    assert row.prefill
    if not row.prefill.workers or not row.split.workers:
        raise ChipError("its columns do not say how many workers computed prompts, and how many decoded")
    prefill, decode = (fleet_of(row, steps, split, split.workers) for split in (row.prefill, row.split))
    return replace(decode, before=prefill, link="nvlink" if row.gpu in ONE_RACK else "ib")


def fleet_of(row: SiliconRow, steps: Recipe, split: Split, workers: int = 1) -> Fleet:
    """The engines of a row, behind their server."""
    if row.engine not in engines.names():
        raise ChipError(f"engine {row.engine} is not predicted")
    model = checkpoint(row.model or row.hub_id, row.precision)
    q = Question(
        model, row.gpu, row.engine, kv_dtype=steps.kv_dtype, tp=split.tp, pp=split.pp, ep=split.ep,
        engine_settings=steps.settings, engine_version=version_of(row),
    )  # fmt: skip
    fleet = Fleet(q.with_formats(), workers)
    return behind_server(fleet) if engines.get(row.engine).server() else fleet


def version_of(row: SiliconRow) -> str:
    """As the engine numbers its releases; "" for a build between releases."""
    name = version(row)
    try:
        number(name)
    except ChipError:
        return ""
    return name if engines.get(row.engine).VERSIONS[0].source else ""


def workload(row: SiliconRow, steps: Recipe, users: int) -> Workload:
    """A closed loop of so many users. The same row gives the same requests."""
    draw = random.Random(f"{row.prompt} {row.output} {users}")
    traffic = Workload(row.id, users=users)
    for _ in range(users * max(min(ROUNDS, MANY // users), FEW)):
        traffic.add(0.0, _length(row.prompt, steps, draw), _length(row.output, steps, draw))
    return traffic


def _length(named: int, steps: Recipe, draw: random.Random) -> int:
    return draw.randint(max(1, int(steps.shortest * named)), named) if steps.shortest < 1 else named
