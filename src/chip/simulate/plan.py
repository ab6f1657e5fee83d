"""Which GPUs, and how many: for each choice the highest rate that keeps a promise, and what that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product
from math import ceil, inf
from pathlib import Path
from typing import Any

from chip.question import SYSTEM, Model, decoder_of
from chip.records import dataclass, field, replace
from chip.simulate import figures, slo
from chip.simulate.answer import Simulation, answer
from chip.simulate.fleet import ServedRequests
from chip.simulate.intervals import spreads_of
from chip.simulate.jobs import Pool, spread_out
from chip.simulate.prices import name_of, of_values
from chip.simulate.setup import SEED, Fleet, Setup, run, setup
from chip.simulate.simulation import system_of, traffic
from chip.simulate.slo import PERCENTILES, Target
from chip.simulate.surface import Factors
from chip.simulate.workload import Workload, at_rate, first
from chip.standing import Figure, places
from chip.types import ChipError, Scenario

SCHEMA = "chip.plan/1"
REQUESTS = 2000
NEAR = 0.02  # rates are searched for to within this share
MOST_TRIES = 16
FEW = 200  # requests at least where a rate is first looked for, with a quarter of all
LIGHT = 0.05  # of the first guess: a rate at which nothing waits
CROWDED_KV = 0.95  # a peak above this share of the blocks: memory limits


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """One kind of engine, and how it does. `status` is ok, or why there is nothing to say."""

    gpu: str
    tp: int
    dtype: str
    status: str
    reason: str = ""
    max_rate_per_s: float = 0.0  # of one replica
    interval: tuple[float, float] | None = None  # of that rate, 90 %; None where none was asked for
    replicas: int = 0
    gpus: int = 0  # of all replicas
    sure_gpus: int | None = None  # at the low end of the rate; None where that end keeps no promise, or without one
    cost_per_hour: float | None = None
    sure_cost_per_hour: float | None = None  # of `sure_gpus`: what choices are ordered by
    cost_per_million_tokens: float | None = None  # output tokens, at the asked rate
    joules_per_output_token: float | None = None
    limited_by: str = ""
    at_rate: dict[str, float] = field(default_factory=dict)  # figures of one replica at its highest rate, ms
    place: int = 0  # from 1; who is tied has the same
    tied: bool = False  # shares its place
    pp: int = 1
    ep: int = 1
    kv_dtype: str = ""  # "" for a cache in the format of the activations
    notes: tuple[str, ...] = ()  # what the figures rest on

    @property
    def gpus_each(self) -> int:
        """Of one replica."""
        return Scenario(1, 1, 1, tp=self.tp, pp=self.pp, ep=self.ep).gpus

    @property
    def title(self) -> str:
        split = "".join(f", {name} {n}" for name, n in (("pp", self.pp), ("ep", self.ep)) if n > 1)
        cache = f", {self.kv_dtype} cache" if self.kv_dtype else ""
        return f"{self.gpus_each} x {self.gpu} ({self.dtype}{cache}{split})"


@dataclass(frozen=True, slots=True)
class Plan:
    model: str
    workload: str
    rate_per_s: float
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
            "choices": [_rounded(asdict(c) | {"title": c.title}) for c in self.choices],
            "notes": list(self.notes),
        }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class Task:
    fleet: Fleet
    workload: Workload
    targets: tuple[Target, ...]
    intervals: bool


def plan(
    model: Model,
    *,
    workload: str | Path | Workload,
    rate: float,
    goals: str,
    gpus: Sequence[str] = (SYSTEM["gpu"],),
    tps: Sequence[int] = (SYSTEM["tp"],),
    pps: Sequence[int] = (SYSTEM["pp"],),
    eps: Sequence[int] = (SYSTEM["ep"],),
    dtypes: Sequence[str] = (SYSTEM["dtype"],),
    prices: Mapping[str, float] | None = None,
    requests: int = REQUESTS,
    seed: int = SEED,
    intervals: bool = True,
    pool: Pool | None = None,
    **system: Any,
) -> Plan:
    """The choices, best first: the cheapest where prices are given, else the fewest GPUs, at the low end of the rate
    that each serves. A price is of one GPU for an hour, in the asker's money. `goals` is like
    "ttft_p99=500ms,tpot_p99=40ms". `system`: other fields of `chip.question.Question`, the same for all choices."""
    if not 0 < rate < 1e9:
        raise ChipError(f"--rate must be requests a second above 0, got {rate:g}")
    targets = slo.parse(goals, percentiles=True)
    w = traffic(workload, requests, None, seed)
    if w.users:
        raise ChipError(f"{w.name}: a plan needs a rate, and users of a closed loop have none")
    decoder, axes = decoder_of(model), ("gpu", "tp", "pp", "ep", "dtype")
    tasks = [
        Task(Fleet(system_of(decoder, {**system, **dict(zip(axes, choice))})), w, targets, intervals)
        for choice in product(gpus, tps, pps, eps, dtypes)
    ]
    if not tasks:
        raise ChipError("nothing to choose from: give at least one --gpu, --tp, --pp, --ep and --dtype")
    priced = of_values(prices or {})
    found = [_priced(c, rate, w, priced) for c in spread_out(explore, tasks, pool)]
    ranked = _ranked(found)
    return Plan(decoder.name, w.name, rate, targets, len(w), seed, ranked, (*w.notes, *_nearest_miss(ranked, targets)))


def explore(task: Task) -> PlanChoice:
    """The highest rate of one choice; a choice that cannot run says why instead of ending the plan."""
    q = task.fleet.question
    made_of = partial(PlanChoice, q.gpu, q.tp, q.dtype, pp=q.pp, ep=q.ep, kv_dtype=q.kv_dtype)
    try:
        made = setup(task.fleet)
        part = min(len(task.workload), max(FEW, len(task.workload) // 4))
        coarse = replace(task, workload=first(task.workload, part))
        rate, rough, at = _highest(made, task, coarse)
    except ChipError as e:
        return made_of("refused", str(e))
    if not at.completed:
        return made_of("refused", f"every prompt leaves no room in {made.longest} tokens of context")
    at_rate_ms = _figures(at, task.targets)
    if not rate:
        miss = ", ".join(f"{n} {v:.4g} ms" for n, v in at_rate_ms.items())
        return made_of("missed", f"even alone a request takes {miss}", at_rate=at_rate_ms)
    energy = at.energy["joules_per_output_token"] if at.energy else None
    return made_of(
        "ok",
        f"{at.rejected} of {at.requests} requests rejected, their prompts leave no room" if at.rejected else "",
        max_rate_per_s=rate,
        interval=_interval(coarse, made, rate, rough or rate) if task.intervals else None,
        joules_per_output_token=energy,
        limited_by=_limit(at, at_rate_ms, task.targets),
        at_rate=at_rate_ms,
        notes=made.notes,
    )


def _highest(made: Setup, task: Task, coarse: Task) -> tuple[float, float, Simulation]:
    """The highest rate that keeps every promise, 0 where even a nearly idle engine breaks one; found with a part of the
    requests first, which it also gives, then with all."""
    guess = _guess(made, task.workload)
    rough, _ = _search(made, coarse, guess, 0.5, 1 + 2 * NEAR, LIGHT * guess)
    start = rough or LIGHT * guess
    rate, found = _search(made, task, start, 0.93, 1 + NEAR, min(start, LIGHT * guess))
    return rate, rough, found or _simulated(made, task, LIGHT * guess)


def _search(
    made: Setup, task: Task, start: float, stride: float, near: float, least: float
) -> tuple[float, Simulation | None]:
    """Out from `start` by strides until one rate keeps the promises and another does not, then bisection."""
    low, high, rate = 0.0, inf, start
    found = None
    for _ in range(MOST_TRIES):
        now = _try(made, task, rate)
        if now is None:
            high = rate
        else:
            low, found = rate, now
        if not low and rate <= least:
            break
        if low and high / low < near:
            break
        rate = max(rate * stride, least) if not low else rate / stride if high == inf else (low * high) ** 0.5
    return low, found


def _guess(made: Setup, w: Workload) -> float:
    """Requests a second if the device did nothing but their work, decodes in a batch of a few dozen."""
    surface, n = made.surface, len(w)
    prompt, output = max(1, sum(w.prompt) // n), max(1, sum(w.output) // n)
    batch = min(32, made.settings.max_num_seqs, max(1, made.blocks * made.settings.block_size // (prompt + output)))
    prefill_s = surface.mixed(0, 0.0, [(min(prompt, made.settings.max_num_batched_tokens), 0)])[0]
    decode_s = surface.decode(batch, prompt + output / 2).seconds * output / batch
    return 1 / max(prefill_s + decode_s, 1e-9)


def _try(made: Setup, task: Task, rate: float) -> Simulation | None:
    """One simulation, given up as soon as a promise cannot be kept any more."""
    w = at_rate(task.workload, rate)
    done = run(made, task.fleet, w, _Promises(task.targets, len(w)))
    if done.stopped:
        return None
    found = answer(task.fleet, made, w, done, 0)
    if found.queue_grows:
        return None
    return found if found.completed and all(_value(found, t) <= t.seconds * 1e3 for t in task.targets) else None


class _Promises:
    """Counts requests that take longer than promised: more of them than the percentile allows ends the simulation."""

    def __init__(self, targets: Sequence[Target], requests: int) -> None:
        self.targets = targets
        self.left = [requests - min(requests - 1, int(PERCENTILES[t.percentile] * requests)) for t in targets]

    def __call__(self, done: ServedRequests, i: int) -> bool:
        kept = True
        for k, t in enumerate(self.targets):
            if figures.latency_s(done, i, t.metric) > t.seconds:
                self.left[k] -= 1
            kept = kept and self.left[k] > 0
        return kept


def _simulated(made: Setup, task: Task, rate: float) -> Simulation:
    w = at_rate(task.workload, rate)
    return answer(task.fleet, made, w, run(made, task.fleet, w), 0)


def _value(found: Simulation, t: Target) -> float:
    percentiles = getattr(found, f"{t.metric}_ms")
    return float(getattr(percentiles, t.percentile)) if percentiles else 0.0


def _figures(found: Simulation, targets: Sequence[Target]) -> dict[str, float]:
    return {t.name: _value(found, t) for t in targets}


def _limit(at: Simulation, ms: Mapping[str, float], targets: Sequence[Target]) -> str:
    """The promise that is nearest to being broken at the highest rate, and what stands behind it."""
    nearest = max(targets, key=lambda t: ms[t.name] / t.seconds)
    cause = "KV memory" if at.preemptions or at.kv["peak_share"] > CROWDED_KV else ""
    if not cause:
        cause = "the GPU" if at.gpu_busy > 0.8 else "the host"
    return f"{nearest.name} ({cause})"


def _interval(coarse: Task, made: Setup, rate: float, rough: float) -> tuple[float, float]:
    """The highest rate again, with times that err to one side and the other as far as the predictor says they may:
    each of three independent errors by its share of the 90 % edge. With a part of the requests, as `rough` is."""
    spreads = spreads_of(made, coarse.workload)
    slow = Factors(*(s.high ** (1 / len(spreads) ** 0.5) for s in spreads))
    fast = Factors(*(max(s.low, 1e-3) ** (1 / len(spreads) ** 0.5) for s in spreads))
    ends = []
    for factors in (slow, fast):
        start = rough / (factors.decode * factors.mixed) ** 0.5
        end, _ = _search(setup(coarse.fleet, factors), coarse, start, 0.9, 1 + 2 * NEAR, LIGHT * start)
        ends.append(rate * end / rough)
    return min(ends[0], rate), max(ends[1], rate)


def _priced(c: PlanChoice, rate: float, w: Workload, prices: dict[str, float]) -> PlanChoice:
    if c.status != "ok":
        return c
    replicas = _replicas(rate, c.max_rate_per_s)
    gpus = replicas * c.gpus_each
    sure = _replicas(rate, c.interval[0]) * c.gpus_each if c.interval and c.interval[0] else None
    price = prices.get(name_of(c.gpu))
    hourly = price * gpus if price is not None else None
    tokens_per_hour = rate * 3600 * sum(w.output) / len(w)
    million = hourly / tokens_per_hour * 1e6 if hourly is not None else None
    cost: dict[str, Any] = {"cost_per_hour": hourly, "cost_per_million_tokens": million}
    cost["sure_cost_per_hour"] = price * sure if price is not None and sure else None
    return replace(c, replicas=replicas, gpus=gpus, sure_gpus=sure, **cost)


def _replicas(rate: float, each: float) -> int:
    return max(1, ceil(rate / each - 1e-9))


def _ranked(choices: Sequence[PlanChoice]) -> tuple[PlanChoice, ...]:
    """By what the low end of the rate costs where all prices are known, else by the GPUs it takes (`chip.standing`)."""
    ok = [c for c in choices if c.status == "ok"]
    priced = all(c.cost_per_hour is not None for c in ok)

    def each(c: PlanChoice) -> float:
        """What one GPU weighs."""
        return (c.cost_per_hour or 0.0) / c.gpus if priced else 1.0

    def figure(c: PlanChoice) -> Figure:
        """What one request a second weighs."""
        replica, (low, high) = each(c) * c.gpus_each, c.interval or (c.max_rate_per_s, c.max_rate_per_s)
        return Figure(replica / c.max_rate_per_s, replica / high, replica / low if low else inf, larger=False)

    def key(c: PlanChoice) -> tuple[float, tuple[float, float]]:
        gpus = c.sure_gpus if c.interval else c.gpus
        return each(c) * gpus if gpus is not None else inf, figure(c).order

    ok.sort(key=key)
    stand = places([figure(c) for c in ok])
    placed = [replace(c, place=place, tied=tied) for c, (place, tied) in zip(ok, stand)]
    return (*placed, *sorted((c for c in choices if c.status != "ok"), key=lambda c: c.status))


def _nearest_miss(choices: Sequence[PlanChoice], targets: Sequence[Target]) -> list[str]:
    if any(c.status == "ok" for c in choices):
        return []
    missed = [c for c in choices if c.status == "missed"]
    if not missed:
        return ["no choice can run the model"]

    def worst(c: PlanChoice) -> float:
        return max(c.at_rate[t.name] / (t.seconds * 1e3) for t in targets)

    nearest = min(missed, key=worst)
    t = max(targets, key=lambda t: nearest.at_rate[t.name] / t.seconds)
    return [
        f"nothing keeps the promise; the nearest is {nearest.title} with {t.name} of "
        f"{nearest.at_rate[t.name]:.4g} ms where {t.seconds * 1e3:g} ms are asked for, on a nearly idle engine"
    ]
