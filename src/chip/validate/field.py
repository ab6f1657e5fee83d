"""Published live traffic, replayed: every row of the silicon sample through the simulated engine that served it.

A deployment's rows are one task: what was asked of its predictor once is known to all of them.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean as mean
from typing import Any, NamedTuple

from chip import engines
from chip.engines import number
from chip.question import Question
from chip.simulator import figures
from chip.simulator.intervals import spreads_of
from chip.simulator.jobs import Pool, spread_out
from chip.simulator.setup import Fleet, behind_server, run, setup
from chip.simulator.surface import Factors
from chip.simulator.workload import Workload
from chip.types import ChipError
from chip.validate.checkpoints import checkpoint
from chip.validate.recipes import ROUNDS, Recipe, recipe, split_as_run, version
from chip.validate.silicon import SiliconRow

FEW, MANY = 3, 480  # rounds of each user that are replayed at least, and requests beyond which no more are
INDEPENDENT = 3**0.5  # errors of decodes, prompts and host: all at their 90 % edge is rarer than each


class Latency(NamedTuple):
    """Means over requests, and their 90 % intervals."""

    ttft_s: float
    tpot_s: float
    ttft_low_s: float
    ttft_high_s: float
    tpot_low_s: float
    tpot_high_s: float


@dataclass(frozen=True, slots=True)
class Replay:
    """A row with its answer, or why there is none."""

    row: SiliconRow
    latency: Latency | None
    refused: str = ""


def replay(rows: Sequence[SiliconRow], pool: Pool | None = None) -> list[Replay]:
    """Every row, in order. Rows of one deployment share a task."""
    tasks: dict[Any, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        tasks[row.deployment, recipe(row).kv_dtype].append(i)
    order = sorted(tasks.values(), key=len, reverse=True)
    answers = spread_out(replay_deployment, [[rows[i] for i in places] for places in order], pool)
    placed = {i: answer for places, found in zip(order, answers) for i, answer in zip(places, found)}
    return [placed[i] for i in range(len(rows))]


def replay_deployment(rows: Sequence[SiliconRow]) -> list[Replay]:
    return [_answered(row) for row in rows]


def _answered(row: SiliconRow) -> Replay:
    try:
        return Replay(row, _latency(row))
    except ChipError as e:
        return Replay(row, None, str(e))


def _latency(row: SiliconRow) -> Latency:
    steps = recipe(row)
    fleet, traffic = fleet_of(row, steps), workload(row, steps)
    made = setup(fleet)
    ttft_s, tpot_s = _means(fleet, traffic)
    slow, fast = (
        Factors(*(1 + (getattr(spread, edge) - 1) / INDEPENDENT for spread in spreads_of(made, traffic)))
        for edge in ("high", "low")
    )
    # A decode's share of the spread reaches TPOT; queues make TTFT follow the whole step
    low, high = _means(fleet, traffic, fast), _means(fleet, traffic, slow)
    return Latency(ttft_s, tpot_s, min(low[0], ttft_s), max(high[0], ttft_s), min(low[1], tpot_s), max(high[1], tpot_s))


def _means(fleet: Fleet, traffic: Workload, factors: Factors | None = None) -> tuple[float, float]:
    """Of all rounds. All users begin at once, so that the first round waits longest; it counts as one of all."""
    made = setup(fleet, factors) if factors else setup(fleet)
    served = run(made, fleet, traffic)
    if len(served.rejected) == len(traffic):
        raise ChipError("no request was answered: prompts are longer than the engine's context")
    first, later = range(traffic.users), range(traffic.users, len(traffic))
    of = [[figures.latency_s(served, i, metric) for i in requests if served.last_s[i] >= 0]
          for metric in ("ttft", "tpot") for requests in (first, later)]  # fmt: skip
    ttft_s, tpot_s = ((mean(a) + (ROUNDS - 1) * mean(b)) / ROUNDS for a, b in (of[:2], of[2:]))
    return ttft_s, tpot_s


def fleet_of(row: SiliconRow, steps: Recipe) -> Fleet:
    """The engine of a row, behind its server."""
    split = split_as_run(row)
    if row.engine not in engines.names():
        raise ChipError(f"engine {row.engine} is not predicted")
    if row.prefill:
        raise ChipError("prompts and decodes on GPUs of their own are not simulated")
    model = checkpoint(row.model or row.hub_id, row.precision)
    q = Question(
        model, row.gpu, row.engine, kv_dtype=steps.kv_dtype, tp=split.tp, pp=split.pp, ep=split.ep,
        engine_settings=steps.settings, engine_version=version_of(row),
    )  # fmt: skip
    fleet = Fleet(q.with_formats())
    return behind_server(fleet) if engines.get(row.engine).server() else fleet


def version_of(row: SiliconRow) -> str:
    """As the engine numbers its releases; "" for a build between releases."""
    name = version(row)
    try:
        number(name)
    except ChipError:
        return ""
    return name if engines.get(row.engine).VERSIONS[0].source else ""


def workload(row: SiliconRow, steps: Recipe) -> Workload:
    """A closed loop of the row's users. The same row gives the same requests."""
    draw = random.Random(f"{row.prompt} {row.output} {row.users}")
    traffic = Workload(row.id, users=row.users)
    requests = row.users * max(min(ROUNDS, MANY // row.users), FEW)
    for _ in range(requests):
        traffic.add(0.0, _length(row.prompt, steps, draw), _length(row.output, steps, draw))
    return traffic


def _length(named: int, steps: Recipe, draw: random.Random) -> int:
    return draw.randint(max(1, int(steps.shortest * named)), named) if steps.shortest < 1 else named
