"""One run of a benchmarking client against a server: what it asked, and its figures.

Figures are called as `vllm bench serve` calls them (`mean_ttft_ms`, `p99_itl_ms`, `output_throughput`), whatever the
client's own names are. `tpot` is a request's time after its first token over its other tokens; `itl` one value for each
chunk.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from chip.simulator.synthetic import CLOSED_RANGE
from chip.simulator.workload import Workload
from chip.types import ChipError

METRICS = ("ttft", "tpot", "itl", "e2el")
PARTS = ("mean", "median", "p90", "p95", "p99")
RATES = ("output_throughput", "request_throughput")
NAMES = (*(f"{part}_{metric}_ms" for metric in METRICS for part in PARTS), *RATES)
SEED = 7
MOST_REQUESTS = 1_000_000
UNEQUAL = 0.9  # of the requests of a closed loop start when as many as ever are under way


@dataclass(frozen=True, slots=True)
class ClientResult:
    client: str
    path: Path
    model: str  # as the client calls it; "" where the file does not say
    workload: Workload
    figures: Mapping[str, float]
    gpu: str = ""
    tp: int = 1
    ep: int = 1
    dtype: str = ""
    server: str = ""  # what answered, where the file says
    version: str = ""
    notes: tuple[str, ...] = ()
    schema: str = ""  # of a file of chip's own
    # Of a server that was watched: requests, tokens of prompts, steps, chunks, and CPU seconds of its event loop
    loop: tuple[float, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        w = self.workload
        load = f"{w.users} users" if w.users else f"{w.rate_per_s:.3g} requests/s" if w.rate_per_s else "all at once"
        prompt, output = sum(w.prompt) / len(w), sum(w.output) / len(w)
        return f"{load}, {len(w)} requests of {prompt:.0f} + {output:.0f} tokens"


def number(value: Any, where: str, least: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value) or value < least:
        raise ChipError(f"{where} must be a number from {least:g} on, got {str(value)[:40]}")
    return float(value)


def whole(row: Mapping[str, Any], key: str, where: str, default: int | None = None, least: int = 0) -> int:
    """A count in a row; `default` where it says nothing."""
    value = row.get(key)
    return default if default is not None and not value else int(number(value, f"{where}: {key}", least))


def numbers(values: Any, where: str) -> list[float]:
    if not isinstance(values, list):
        raise ChipError(f"{where} must be a list of numbers, got {str(values)[:40]}")
    return [number(v, f"{where}[{i}]") for i, v in enumerate(values)]


def figures_of(row: Mapping[str, Any], where: str, their_names: Mapping[str, str] | None = None) -> dict[str, float]:
    """Those that a row has. `their_names`: what it calls the metrics, where not as `NAMES` does."""
    out = {}
    for name in NAMES:
        key = name
        for metric, other in (their_names or {}).items():
            key = key.replace(metric, other)
        if row.get(key) is not None:
            out[name] = number(row[key], f"{where}: {key}")
    if "mean_ttft_ms" not in out and "median_ttft_ms" not in out:
        raise ChipError(f"{where}: has no time to first token: were the answers streamed?")
    return out


def lengths(mean: float, requests: int, share: tuple[float, float], draw: random.Random) -> list[int]:
    """So many tokens in the mean, drawn between two shares of it."""
    low, high = share
    middle = (low + high) / 2
    return [max(1, round(mean * draw.uniform(low, high) / middle)) for _ in range(requests)]


def workload_of(
    name: str, prompt: Sequence[int], output: Sequence[int], *, rate: float = 0.0, users: int = 0,
    burstiness: float = 1.0, arrival_s: Sequence[float] = (),
) -> Workload:  # fmt: skip
    """Traffic as the client made it: at `arrival_s` where it is known when each request was sent, else drawn anew."""
    w, draw = Workload(name, users=users), random.Random(SEED)
    at = 0.0
    order = sorted(range(len(prompt)), key=lambda i: arrival_s[i]) if arrival_s else range(len(prompt))
    for i in order:
        if arrival_s:
            at = arrival_s[i] - arrival_s[order[0]]
        elif rate and not users:
            at += draw.gammavariate(burstiness, 1 / (burstiness * rate))
        w.add(0.0 if users else at, max(1, prompt[i]), max(1, output[i]))
    if rate and not users and not arrival_s:  # as the tools do: as many seconds in all as the rate says
        w.arrival_s = array("d", (t * len(w) / rate / at for t in w.arrival_s))
    return w


def from_totals(
    name: str, requests: int, prompt: float, output: float, *, rate: float, users: int, burstiness: float = 1.0,
    share: tuple[float, float] | None = None,
) -> tuple[Workload, tuple[str, ...]]:  # fmt: skip
    """Of a file that has no single requests, but mean lengths; `share` is how far they were drawn from."""
    if not 1 <= requests <= MOST_REQUESTS or prompt < 1 or output < 1:
        raise ChipError(f"{name}: holds no requests with a prompt and an answer")
    notes = []
    if share is None:
        low = 1 - CLOSED_RANGE if users > 1 else 1.0
        share = (low, 2 - low)
        how = f"drawn within {CLOSED_RANGE:.0%} of their mean" if users > 1 else "taken as equal"
        notes.append(f"the file has no lengths of single requests: they are {how}")
    draw = random.Random(SEED)
    made = workload_of(
        name, lengths(prompt, requests, share, draw), lengths(output, requests, share, draw),
        rate=rate, users=users, burstiness=burstiness,
    )  # fmt: skip
    return made, tuple(notes)


def users_of(begin_s: Sequence[float], end_s: Sequence[float]) -> int:
    """How many users went in a loop: as many as are under way nearly whenever one begins. 0: arrivals were free."""
    most, under_way = 0, []
    ends = sorted(end_s)
    done = 0
    for i, at in enumerate(sorted(begin_s)):
        while done < len(ends) and ends[done] <= at:
            done += 1
        under_way.append(i + 1 - done)
        most = max(most, under_way[-1])
    later = under_way[most:]
    full = sum(n >= most - 1 for n in later)
    return most if len(later) >= most and full >= UNEQUAL * len(later) else 0


def spread(name: str, values: Sequence[float]) -> Iterator[tuple[str, float]]:
    """Figures of single requests, in milliseconds."""
    from chip.stats import quantile

    if values:
        yield f"mean_{name}_ms", sum(values) / len(values)
        for part, q in (("median", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
            yield f"{part}_{name}_ms", quantile(values, q)
