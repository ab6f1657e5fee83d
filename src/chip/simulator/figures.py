"""From what became of each request to the figures people ask for."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from chip.simulator.fleet import ServedRequests
from chip.simulator.slo import PERCENTILES, Target

FEW_REQUESTS, LONG = 100, 20  # fewer tell nothing, nor does traffic of less than so many times a request's time
OF_REQUESTS = ("ttft", "tpot", "e2e", "queue")
FIGURES = ("ttft", "tpot", "itl", "e2e", "queue")
Counted = Sequence[tuple[float, int]]  # values in order, and how often each was


class Percentiles(NamedTuple):
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


def percentile(ordered: Sequence[float], p: float) -> float:
    """An order statistic that really happened: sorted[min(n - 1, int(p n))]."""
    return ordered[min(len(ordered) - 1, int(p * len(ordered)))]


def percentiles(values: Sequence[float]) -> Percentiles | None:
    if not values:
        return None
    ordered = sorted(values)
    return Percentiles(sum(ordered) / len(ordered), *(percentile(ordered, p) for p in PERCENTILES.values()))


def percentiles_of(values: Counted) -> Percentiles | None:
    """Of values that were there several times."""
    if not values:
        return None
    ends = list(accumulate(n for _, n in values))
    mean = sum(v * n for v, n in values) / ends[-1]
    return Percentiles(
        mean, *(values[bisect_right(ends, min(ends[-1] - 1, int(p * ends[-1])))][0] for p in PERCENTILES.values())
    )


def latency_s(done: ServedRequests, i: int, metric: str) -> float:
    """Of one request that was answered."""
    if metric == "ttft":
        return done.first_s[i] - done.arrival_s[i]
    if metric == "tpot":
        return (done.last_s[i] - done.first_s[i]) / max(1, done.output[i] - 1)
    if metric == "e2e":
        return done.last_s[i] - done.arrival_s[i]
    return done.queue_s[i] - done.arrival_s[i]


def latencies(done: ServedRequests) -> dict[str, array[float]]:
    """Seconds by metric, of the requests that were answered. TPOT is of those that have more than one token."""
    answered = [i for i in range(len(done.last_s)) if done.last_s[i] >= 0]
    several = [i for i in answered if done.output[i] > 1]
    return {
        metric: array("d", (latency_s(done, i, metric) for i in (several if metric == "tpot" else answered)))
        for metric in OF_REQUESTS
    }


def grows(done: ServedRequests, alone_s: float) -> bool:
    """Whether requests were still piling up when the last one came: never over the last quarter of the arrivals were as
    few in the engine as at most over the second. `alone_s`: what a request takes without others."""
    order = sorted((at, end) for at, end in zip(done.arrival_s, done.last_s) if end >= 0)
    n = len(order)
    if n < FEW_REQUESTS or order[-1][0] - order[0][0] < LONG * alone_s:
        return False  # too few to tell: the engine was still filling up
    ends = sorted(end for _, end in order)
    inside = [i + 1 - bisect_right(ends, at) for i, (at, _) in enumerate(order)]
    return min(inside[-(n // 4) :]) > max(inside[n // 4 : n // 2])


def meets(done: ServedRequests, i: int, targets: Sequence[Target]) -> bool:
    return done.last_s[i] >= 0 and all(
        latency_s(done, i, t.metric) <= t.seconds for t in targets if t.metric != "tpot" or done.output[i] > 1
    )
