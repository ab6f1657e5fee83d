"""Which GPUs, and how many: for each choice the highest rate that keeps a promise, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from math import ceil, inf
from pathlib import Path
from typing import Any

from chip.predictor.basis import are_doubted
from chip.predictor.standing import Figure, places
from chip.question import SYSTEM, Model, decoder_of
from chip.simulator import slo, synthetic
from chip.simulator.answer import Simulation
from chip.simulator.disaggregated import SPLITS, with_split
from chip.simulator.highest_rate import FAR, MOST, InSteps, Promise, finished, highest_rate, value
from chip.simulator.jobs import Pool, spread_out
from chip.simulator.prices import name_of, of_values
from chip.simulator.setup import LINK, SEED, Fleet
from chip.simulator.simulation import system_of, traffic
from chip.simulator.slo import Target
from chip.simulator.workload import Workload
from chip.types import ChipError, Scenario

SCHEMA = "chip.plan/1"
REQUESTS = 1000  # of each simulation at least: ten lie above the 99th percentile
CROWDED_KV = 0.95  # a peak above this share of the blocks: memory limits
AUTO_SPLIT = "auto"
SHOWN = ("ttft", "tpot", "e2e")  # whose p99 at the highest rate is told, whatever is promised
BY = ("throughput", "cost", "energy")


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """One kind of engine, and how it does. `status` is ok, or why there is nothing to say: refused, missed, or worse,
    where a smaller split serves more per GPU."""

    gpu: str
    tp: int
    dtype: str
    status: str
    reason: str = ""
    max_rate_per_s: float = 0.0  # of one replica
    interval: tuple[float, float] | None = None  # of that rate, 90 %; None where none was asked for
    requests: int = 0  # of the simulation that shows it
    in_flight: float = 0.0  # requests in a replica at that rate, on average
    tokens_per_s_per_gpu: float = 0.0  # output tokens at that rate
    replicas: int = 0
    gpus: int = 0  # of all replicas
    sure_gpus: int | None = None  # at the low end of the rate; None where that end keeps no promise, or without one
    cost_per_hour: float | None = None
    sure_cost_per_hour: float | None = None  # of `sure_gpus`: what choices are ordered by
    cost_per_million_tokens: float | None = None  # output tokens, at the asked rate, else at the highest
    joules_per_output_token: float | None = None
    limited_by: str = ""
    at_rate_s: dict[str, float] = field(default_factory=dict)  # figures of one replica at its highest rate
    place: int = 0  # from 1; who is tied has the same
    tied: bool = False  # shares its place
    may_lead: bool = False  # its interval reaches beyond the first one's estimate
    pp: int = 1
    ep: int = 1
    kv_dtype: str = ""  # "" for a cache in the format of the activations
    rests_on: str = ""  # measured, imported or datasheet (`chip.predictor.basis`)
    notes: tuple[str, ...] = ()  # what the figures rest on
    split: str = ""  # workers for prompts and for decodes in a replica, as 2p1d; "" where an engine does both
    workers: int = 1  # of a replica

    @property
    def gpus_each(self) -> int:
        """Of one replica."""
        return Scenario(1, 1, 1, tp=self.tp, pp=self.pp, ep=self.ep).gpus * self.workers

    @property
    def title(self) -> str:
        split = "".join(f", {name} {n}" for name, n in (("pp", self.pp), ("ep", self.ep)) if n > 1)
        cache = f", {self.kv_dtype} cache" if self.kv_dtype else ""
        apart = f", {self.split} of {self.gpus_each // self.workers}" if self.split else ""
        return f"{self.gpus_each} x {self.gpu} ({self.dtype}{cache}{split}{apart})"

    def json(self) -> dict[str, Any]:
        out = asdict(self) | {"title": self.title}
        out["at_rate"] = {name: seconds * 1e3 for name, seconds in out.pop("at_rate_s").items()}
        found: dict[str, Any] = rounded(out)
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    """The choices that a plan compares, the best first."""

    model: str
    workload: str
    rate_per_s: float | None  # None: each choice at its own highest rate
    slo: tuple[Target, ...]
    requests: int
    seed: int
    choices: tuple[PlanChoice, ...]  # the best first
    notes: tuple[str, ...] = ()

    def json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "model": self.model,
            "workload": self.workload,
            "rate_per_s": self.rate_per_s,
            "slo": {t.name: t.seconds * 1e3 for t in self.slo},
            "requests": self.requests,
            "seed": self.seed,
            "choices": [c.json() for c in self.choices],
            "notes": list(self.notes),
        }


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class Task:
    promise: Promise
    intervals: bool
    beats: float = 0.0  # requests a second: a choice that serves fewer is not looked at any closer
    split: str = ""


def plan(
    model: Model,
    *,
    workload: str | Path | Workload,
    rate: float | None = None,
    goals: str,
    gpus: Sequence[str] = (SYSTEM["gpu"],),
    tps: Sequence[int] = (SYSTEM["tp"],),
    pps: Sequence[int] = (SYSTEM["pp"],),
    eps: Sequence[int] = (SYSTEM["ep"],),
    dtypes: Sequence[str] = (SYSTEM["dtype"],),
    splits: Sequence[str] = ("",),
    kv_link: str = LINK,
    prices: Mapping[str, float] | None = None,
    requests: int = REQUESTS,
    seed: int = SEED,
    intervals: bool = True,
    pool: Pool | None = None,
    **system: Any,
) -> Plan:
    """The choices, best first: the cheapest where prices are given, else the fewest GPUs, at the low end of the rate
    that each serves. A price is of one GPU for an hour, in the asker's money. `goals` is like
    "ttft_p99=500ms,tpot_p99=40ms". Without a `rate` each choice serves its own highest. `requests` are simulated at
    least, more where they do not show a steady rate. `system`: other fields of `chip.question.Question`, the same for
    all choices. `splits` are like "2p1d" (`chip.simulate`), "" for engines that do both; `("auto",)` tries several."""
    check_rate(rate)
    targets = slo.parse(goals, percentiles=True)
    w = supply(workload, requests, seed)
    decoder, axes = decoder_of(model, system.get("answer_as", "")), ("gpu", "tp", "pp", "ep", "dtype")
    fleets = [
        Fleet(system_of(decoder, {**system, **dict(zip(axes, choice))}))
        for choice in product(gpus, tps, pps, eps, dtypes)
    ]
    splits = SPLITS if tuple(splits) == (AUTO_SPLIT,) else splits
    if not fleets:
        raise ChipError("nothing to choose from: give at least one --gpu, --tp, --pp, --ep and --dtype")
    tasks = [
        Task(Promise(with_split(fleet, split, kv_link), w, requests, targets), intervals, split=split)
        for fleet in fleets
        for split in splits
    ]
    known = of_values(prices or {})
    choices = ranked([priced(c, rate, known) for c in spread_out(explore, tasks, pool)], rate)
    notes = (*w.notes, *_nearest_miss(choices, targets))
    return Plan(decoder.name, w.name, rate, targets, requests, seed, choices, notes)


def check_rate(rate: float | None) -> None:
    if rate is not None and not 0 < rate < 1e9:
        raise ChipError(f"--rate must be requests a second above 0, got {rate:g}")


def supply(workload: str | Path | Workload, requests: int, seed: int) -> Workload:
    """Requests to take from: the asked ones of a trace, as many as may be needed of what is made up."""
    w = traffic(workload, requests, None, seed)
    if w.users:
        raise ChipError(f"{w.name}: a plan needs a rate, and users of a closed loop have none")
    made_up = str(workload).partition(":")[0] in synthetic.KINDS
    return traffic(workload, max(MOST, requests), None, seed) if made_up else w


def explore(task: Task) -> PlanChoice:
    return finished(exploring(task))


def exploring(task: Task) -> InSteps[PlanChoice]:
    """The highest rate of one choice; a choice that cannot run says why instead of ending the plan."""
    p, q = task.promise, task.promise.fleet.question
    made_of = partial(PlanChoice, q.gpu, q.tp, q.dtype, pp=q.pp, ep=q.ep, kv_dtype=q.kv_dtype)
    fleet = p.fleet
    if fleet.before:
        made_of = partial(made_of, split=task.split, workers=fleet.replicas + fleet.before.replicas)
    try:
        best = yield from highest_rate(p, task.intervals, task.beats)
    except ChipError as e:
        return made_of("refused", str(e))
    made_of = partial(made_of, rests_on=best.rests_on, notes=best.notes)
    at, rate = best.at, best.rate_per_s
    if at is None:
        return made_of("worse", f"serves fewer than {task.beats:.4g} requests/s")
    if not at.completed:
        return made_of("refused", f"every prompt leaves no room in {at.settings['max_model_len']} tokens of context")
    at_rate_s = _figures(at, p.targets)
    if not rate:
        miss = ", ".join(f"{t.name} {at_rate_s[t.name] * 1e3:.4g} ms" for t in p.targets)
        alone = f"at {at.rate_per_s:.3g} requests/s" if best.waits else "alone"
        return made_of("missed", f"even {alone} a request takes {miss}", at_rate_s=at_rate_s)
    choice = made_of(
        "ok", max_rate_per_s=rate, interval=(best.low, best.high) if task.intervals else None, at_rate_s=at_rate_s
    )
    return replace(
        choice,
        reason=f"{100 * at.rejected / at.requests:.2g} % of requests are rejected: their prompts leave no room"
        if at.rejected
        else "",
        requests=at.requests,
        in_flight=at.e2e_s.mean * rate if at.e2e_s else 0.0,
        tokens_per_s_per_gpu=rate * sum(p.workload.output) / len(p.workload) / choice.gpus_each,
        joules_per_output_token=at.energy["joules_per_output_token"] if at.energy else None,
        limited_by=_limit(at, at_rate_s, p.targets),
    )


def _figures(at: Simulation, targets: Sequence[Target]) -> dict[str, float]:
    shown = (*targets, *(Target(metric, "p99", inf) for metric in SHOWN))
    return {t.name: value(at, t) for t in shown}


def _limit(at: Simulation, at_rate_s: Mapping[str, float], targets: Sequence[Target]) -> str:
    """The promise that is nearest to being broken at the highest rate, or the queue, and what stands behind it."""
    nearest = max(targets, key=lambda t: at_rate_s[t.name] / t.seconds)
    cause = "KV memory" if at.preemptions or at.kv["peak_share"] > CROWDED_KV else ""
    if not cause:
        cause = "the GPU" if at.gpu_busy > 0.8 else "the host"
    name = nearest.name if at_rate_s[nearest.name] > FAR * nearest.seconds else "queue"
    return f"{name} ({cause})"


def priced(c: PlanChoice, rate: float | None, prices: Mapping[str, float]) -> PlanChoice:
    """With what it costs to serve a rate by as many replicas as that takes, or by one at its highest rate."""
    if c.status != "ok":
        return c
    replicas = _replicas(rate or c.max_rate_per_s, c.max_rate_per_s)
    gpus, price = replicas * c.gpus_each, prices.get(name_of(c.gpu))
    sure = _replicas(rate, c.interval[0]) * c.gpus_each if rate and c.interval and c.interval[0] else None
    hourly = price * gpus if price is not None else None
    tokens_per_request = c.tokens_per_s_per_gpu * c.gpus_each / c.max_rate_per_s
    tokens_per_hour = 3600 * (rate or c.max_rate_per_s) * tokens_per_request
    million = hourly / tokens_per_hour * 1e6 if hourly is not None else None
    cost: dict[str, Any] = {"cost_per_hour": hourly, "cost_per_million_tokens": million}
    cost["sure_cost_per_hour"] = price * sure if price is not None and sure else None
    return replace(c, replicas=replicas, gpus=gpus, sure_gpus=sure, **cost)


def _replicas(rate: float, each: float) -> int:
    return max(1, ceil(rate / each - 1e-9))


def ranked(choices: Sequence[PlanChoice], rate: float | None = None, by: str = "") -> tuple[PlanChoice, ...]:
    """The best first, by the end of the interval that one can count on (`chip.standing`): what a request a second costs
    where all prices are known, else the GPUs it takes; or `by` one of `BY`. Where a rate is asked for, whole replicas
    count."""
    ok = [c for c in choices if c.status == "ok"]
    by = by or ("cost" if all(c.cost_per_hour is not None for c in ok) else "throughput")

    def figure(c: PlanChoice) -> Figure:
        """What one request a second weighs; a joule is one of a token."""
        if by == "energy":
            joules = c.joules_per_output_token or inf
            return Figure(joules, joules, joules, larger=False)
        replica, (low, high) = _weight(c, by) * c.gpus_each, c.interval or (c.max_rate_per_s, c.max_rate_per_s)
        return Figure(replica / c.max_rate_per_s, replica / high, replica / low if low else inf, larger=False)

    def key(c: PlanChoice) -> tuple[bool, float, tuple[float, float]]:
        """What is not usable comes behind all that is."""
        if rate is None or by == "energy":
            return are_doubted(c.notes), 0.0, figure(c).order
        gpus = c.sure_gpus if c.interval else c.gpus
        return are_doubted(c.notes), _weight(c, by) * gpus if gpus is not None else inf, figure(c).order

    ok.sort(key=key)
    standing = [figure(c) for c in ok if figure(c).value < inf]
    first = standing[0] if standing else None
    placed = list(ok)
    for i, (place, tied) in enumerate(places(standing)):
        may_lead = place > 1 and first is not None and standing[i].may_beat(first)
        placed[i] = replace(ok[i], place=place, tied=tied, may_lead=may_lead)
    return (*placed, *sorted((c for c in choices if c.status != "ok"), key=lambda c: c.status))


def _weight(c: PlanChoice, by: str) -> float:
    """Of one GPU."""
    if by == "throughput":
        return 1.0
    return inf if c.cost_per_hour is None else c.cost_per_hour / c.gpus


def _nearest_miss(choices: Sequence[PlanChoice], targets: Sequence[Target]) -> list[str]:
    if any(c.status == "ok" for c in choices):
        return []
    missed = [c for c in choices if c.status == "missed"]
    if not missed:
        return ["no choice can run the model"]

    def worst(c: PlanChoice) -> float:
        return max(c.at_rate_s[t.name] / t.seconds for t in targets)

    nearest = min(missed, key=worst)
    t = max(targets, key=lambda t: nearest.at_rate_s[t.name] / t.seconds)
    return [
        f"nothing keeps the promise; the nearest is {nearest.title} with {t.name} of "
        f"{nearest.at_rate_s[t.name] * 1e3:.4g} ms where {t.seconds * 1e3:g} ms are asked for, on a nearly idle engine"
    ]
