"""Live traffic through a simulated engine: what `chip simulate` and `chip.simulate` answer."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from chip.models import library
from chip.simulate import figures, settings, slo, synthetic, workload
from chip.simulate.engine import Engine
from chip.simulate.figures import Percentiles
from chip.simulate.fleet import EveryFinish, Served, serve
from chip.simulate.jobs import Pool, spread_out
from chip.simulate.settings import Settings
from chip.simulate.step_time import Spread, StepTimes, step, step_times
from chip.simulate.surface import PLAIN, Factors, Surface
from chip.simulate.timeline import Timeline
from chip.simulate.workload import Workload
from chip.types import ChipError, Seq

SCHEMA = "chip.simulation/1"
TIMELINE = "chip.timeline/1"
DEFAULTS: dict[str, Any] = {
    "gpu": "h200", "engine": "vllm", "dtype": "bf16", "tp": 1, "requests": 1000, "seed": 0, "replicas": 1,
    "router": "round-robin", "draws": 20,
}  # fmt: skip
MOST_REQUESTS = 100_000_000
MOST_LAUNCH_NS = 1e6
Z90 = 1.645


@dataclass(frozen=True, slots=True)
class Question:
    """What is simulated, but for the traffic."""

    model: str
    gpu: str = DEFAULTS["gpu"]
    engine: str = DEFAULTS["engine"]
    dtype: str = DEFAULTS["dtype"]
    tp: int = DEFAULTS["tp"]
    settings: tuple[tuple[str, Any], ...] = ()
    replicas: int = DEFAULTS["replicas"]
    router: str = DEFAULTS["router"]
    launch_ns: float = 0.0  # of the host; 0 for the host that the engine's terms were measured on


@dataclass(frozen=True, slots=True)
class Simulation:
    """The answer. Times are of requests that were answered; `interval` holds the 90 % interval of each figure."""

    question: Question
    workload: str
    rate_per_s: float
    seed: int
    requests: int
    completed: int
    rejected: int
    shortened: int
    duration_s: float
    output_tokens_per_s: float
    requests_per_s: float
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    e2e_ms: Percentiles | None
    queue_ms: Percentiles | None
    goodput: dict[str, Any] | None
    kv: dict[str, float]
    preemptions: int
    cache_hit_rate: float
    energy: dict[str, float] | None
    gpu_busy: float
    steps: int
    settings: dict[str, Any]
    interval: dict[str, Any] | None
    notes: list[str] = field(default_factory=list)
    served: Served | None = None
    timelines: tuple[Timeline, ...] = ()

    def json(self) -> dict[str, Any]:
        q = self.question
        out: dict[str, Any] = {"schema": SCHEMA, "model": q.model, "gpu": q.gpu, "engine": q.engine, "dtype": q.dtype}
        out |= {"tp": q.tp, "replicas": q.replicas, "router": q.router, "workload": self.workload}
        for name in ("rate_per_s", "seed", "requests", "completed", "rejected", "shortened"):
            out[name] = _short(getattr(self, name))
        for name in ("duration_s", "output_tokens_per_s", "requests_per_s"):
            out[name] = _short(getattr(self, name))
        for name in figures.FIGURES:
            found = getattr(self, name)
            out[name] = {k: _short(v) for k, v in found._asdict().items()} if found else None
        for name in ("goodput", "kv", "preemptions", "cache_hit_rate", "energy", "gpu_busy", "steps", "settings"):
            out[name] = _short(getattr(self, name))
        out["interval"] = self.interval
        out["notes"] = self.notes
        return out

    def per_request(self) -> Iterator[str]:
        """One JSON line for each request, in the order of the workload; times in seconds from the start."""
        assert self.served is not None
        done = self.served
        for i in range(len(done.arrival_s)):
            row: dict[str, Any] = {"request": i, "arrival_s": done.arrival_s[i]}
            if done.last_s[i] < 0:
                row["status"] = "rejected"
            else:
                row |= {"status": "ok", "scheduled_s": done.queue_s[i], "first_s": done.first_s[i]}
                row |= {"last_s": done.last_s[i], "output": done.output[i], "replica": done.replica[i]}
                row |= {"cached": done.cached[i], "preempted": done.preempted[i]}
            yield json.dumps({k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()})

    def timeline_json(self) -> dict[str, Any]:
        blocks = self.kv["blocks"]
        return {"schema": TIMELINE, "replicas": [t.json(int(blocks)) for t in self.timelines]}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return value


@lru_cache(maxsize=64)
def surface_of(model: str, gpu: str, engine: str, dtype: str, tp: int, launch_ns: float = 0.0) -> Surface:
    """One for each predictor: what was asked of it once is known to all simulations that follow."""
    return Surface(step_times(library.find(model), gpu, engine, dtype, tp, launch_ns))


@dataclass(frozen=True, slots=True)
class Setup:
    """An engine ready to be made: its settings with all defaults filled in."""

    surface: Surface
    settings: Settings
    blocks: int
    longest: int
    notes: tuple[str, ...]

    def maker(self, watches: Sequence[Timeline] = (), merge: bool = True) -> Callable[[int], Engine]:
        return lambda i: Engine(self.surface, self.settings, self.blocks, watches[i] if watches else None, merge)


def setup(q: Question, factors: Factors = PLAIN) -> Setup:
    known = surface_of(q.model, q.gpu, q.engine, q.dtype, q.tp, q.launch_ns)
    surface = known if factors == PLAIN else Surface(known.times, factors, known)
    times = known.times
    given = settings.with_values(settings.defaults(times.memory_bytes), dict(q.settings))
    blocks = given.num_gpu_blocks or times.kv_capacity_tokens // given.block_size
    blocks -= 1  # vLLM keeps one block that means "nothing"
    if blocks < 1:
        raise ChipError(f"{q.model} on {q.tp} x {q.gpu}: no room for a single KV block of {given.block_size} tokens")
    notes = []
    room = blocks * given.block_size
    longest = given.max_model_len or times.max_context or room
    if longest > room:
        if given.max_model_len:
            raise ChipError(f"max_model_len {longest} exceeds the KV cache of {room} tokens: vLLM refuses to start")
        notes.append(
            f"the model's context of {longest} tokens exceeds the KV cache of {room}: vLLM would not start without "
            f"max_model_len; {room} is taken"
        )
        longest = room
    if not known.times.host(1, 1, True, True).prepare_s:
        notes.append(f"no host or engine terms are known for {q.engine} on {q.gpu}: steps are the device's time alone")
    return Setup(surface, given, blocks, longest, tuple(notes))


def traffic(source: str | Path | Workload, requests: int | None, rate: float | None, seed: int) -> Workload:
    """A workload by its name, file or description; `rate` 0 lets all requests come at once."""
    if requests is not None and not 1 <= requests <= MOST_REQUESTS:
        raise ChipError(f"--requests must be between 1 and {MOST_REQUESTS}, got {requests}")
    if rate is not None and not (0 <= rate < 1e9):
        raise ChipError(f"--rate must be requests a second, 0 for all at once, got {rate:g}")
    if isinstance(source, Workload):
        made = source
    elif str(source).partition(":")[0] in synthetic.KINDS:
        described = synthetic.parse(str(source))
        made = synthetic.make(described, requests or DEFAULTS["requests"], seed, str(source))
    elif str(source) in workload.names():
        made = workload.named(str(source))
        requests = requests or DEFAULTS["requests"]
    else:
        made = _file(str(source))
    if requests:
        made = workload.first(made, requests)
    if rate is not None and made.users:
        raise ChipError(f"{made.name}: users of a closed loop wait for their answers, so --rate does not go with it")
    return made if rate is None else workload.at_rate(made, rate)


def _file(name: str) -> Workload:
    path = Path(name)
    if not path.exists():
        raise ChipError(
            f"workload {name[:80]!r}: no such file; bundled: {', '.join(workload.names())}; "
            f"synthetic: {', '.join(synthetic.KINDS)}, as in poisson:prompt=512,output=128"
        )
    return workload.read(path)


def simulate(
    model: str,
    *,
    workload: str | Path | Workload,
    gpu: str = DEFAULTS["gpu"],
    engine: str = DEFAULTS["engine"],
    dtype: str = DEFAULTS["dtype"],
    tp: int = DEFAULTS["tp"],
    rate: float | None = None,
    requests: int | None = None,
    seed: int = DEFAULTS["seed"],
    replicas: int = DEFAULTS["replicas"],
    router: str = DEFAULTS["router"],
    engine_settings: Mapping[str, Any] | None = None,
    goals: str = "",
    draws: int = DEFAULTS["draws"],
    timeline: bool = False,
    launch_ns: float = 0.0,
    pool: Pool | None = None,
) -> Simulation:
    """Simulate traffic through `replicas` engines. `goals` is what goodput counts by, "ttft=500ms,tpot=40ms"; `draws`
    simulations with resampled errors make the intervals, 0 for none; `pool` spreads those over processes or machines.
    """
    if not 1 <= replicas <= 4096:
        raise ChipError(f"--replicas must be between 1 and 4096, got {replicas}")
    if not 0 <= launch_ns <= MOST_LAUNCH_NS:
        raise ChipError(f"--launch-ns must be between 0 and {MOST_LAUNCH_NS:g} ns, got {launch_ns:g}")
    if not 0 <= draws <= 10_000:
        raise ChipError(f"--draws must be between 0 and 10000, got {draws}")
    q = Question(model, gpu, engine, dtype, tp, tuple((engine_settings or {}).items()), replicas, router, launch_ns)
    targets = slo.parse(goals, percentiles=False) if goals else ()
    w = traffic(workload, requests, rate, seed)
    watches = tuple(Timeline() for _ in range(replicas)) if timeline else ()
    made = setup(q)
    served = serve(made.maker(watches), w, made.longest, replicas, router)
    found = answer(q, made, w, served, seed, targets)
    interval = _intervals(q, w, seed, draws, pool) if draws else None
    return replace(found, interval=interval, served=served, timelines=watches)


def sweep(model: str, rates: Sequence[float | None], pool: Pool | None = None, **asked: Any) -> list[Simulation]:
    """`simulate` at several rates, spread over a pool; single requests and timelines are not kept."""
    if len(rates) == 1:
        return [simulate(model, rate=rates[0], pool=pool, **asked)]
    return spread_out(_at_one_rate, [(model, rate, asked) for rate in rates], pool)


def _at_one_rate(task: tuple[str, float | None, dict[str, Any]]) -> Simulation:
    model, rate, asked = task
    return replace(simulate(model, rate=rate, **asked), served=None, timelines=())


def run(made: Setup, q: Question, w: Workload, every_finish: EveryFinish | None = None) -> Served:
    return serve(made.maker(), w, made.longest, q.replicas, q.router, every_finish)


def answer(
    q: Question, made: Setup, w: Workload, done: Served, seed: int, targets: Sequence[slo.Target] = ()
) -> Simulation:
    by_metric = figures.latencies(done)
    of = {m: figures.percentiles([1e3 * v for v in by_metric[m]]) for m in by_metric}
    answered = [i for i in range(len(w)) if done.last_s[i] >= 0]
    begin = min((done.arrival_s[i] for i in answered), default=0.0)
    duration = max((done.last_s[i] for i in answered), default=begin) - begin
    tokens = sum(done.output[i] for i in answered)
    engines = done.engines
    notes = [*w.notes, *made.notes, *_said(w, done, made.longest)]
    total_prompt = sum(e.prompt_tokens + e.found_tokens for e in engines)
    return Simulation(
        question=q,
        workload=w.name,
        rate_per_s=w.rate_per_s,
        seed=seed,
        requests=len(w),
        completed=len(answered),
        rejected=len(done.rejected),
        shortened=done.shortened,
        duration_s=duration,
        output_tokens_per_s=tokens / duration if duration else 0.0,
        requests_per_s=len(answered) / duration if duration else 0.0,
        ttft_ms=of["ttft"],
        tpot_ms=of["tpot"],
        e2e_ms=of["e2e"],
        queue_ms=of["queue"],
        goodput=_goodput(done, len(w), duration, targets) if targets else None,
        kv=_kv(made, done, duration),
        preemptions=sum(e.preemptions for e in engines),
        cache_hit_rate=sum(e.found_tokens for e in engines) / total_prompt if total_prompt else 0.0,
        energy=_energy(made.surface.times, q, done, duration, tokens),
        gpu_busy=sum(e.busy_s for e in engines) / (duration * len(engines)) if duration else 0.0,
        steps=sum(e.steps for e in engines),
        settings={n: getattr(made.settings, n) for n in made.settings.__slots__}
        | {"num_gpu_blocks": made.blocks + 1, "max_model_len": made.longest},
        interval=None,
        notes=notes,
    )


def _said(w: Workload, done: Served, longest: int) -> list[str]:
    notes = []
    if done.rejected:
        i = done.rejected[0]
        notes.append(
            f"{len(done.rejected)} of {len(w)} requests were rejected, as vLLM does: the prompt leaves no room in the "
            f"context of {longest} tokens (the first is request {i}, of {w.prompt[i]})"
        )
    if done.shortened:
        notes.append(f"{done.shortened} answers were cut off where the context of {longest} tokens ends")
    return notes


def _goodput(done: Served, asked: int, duration: float, targets: Sequence[slo.Target]) -> dict[str, Any]:
    good = sum(figures.meets(done, i, targets) for i in range(asked))
    return {
        "slo": {t.name: t.seconds * 1e3 for t in targets},
        "share": good / asked,
        "requests_per_s": good / duration if duration else 0.0,
    }


def _kv(made: Setup, done: Served, duration: float) -> dict[str, float]:
    held = sum(e.used_block_s for e in done.engines)
    return {
        "blocks": made.blocks,
        "mean_share": held / (made.blocks * duration * len(done.engines)) if duration else 0.0,
        "peak_share": max(e.peak_blocks for e in done.engines) / made.blocks,
    }


def _energy(times: StepTimes, q: Question, done: Served, duration: float, tokens: int) -> dict[str, float] | None:
    """All GPUs together, idle power included."""
    idle_w = times.idle_w()
    if idle_w is None or not tokens:
        return None
    joules = q.tp * (sum(e.joules for e in done.engines) + idle_w * duration * len(done.engines))
    return {"joules": joules, "joules_per_output_token": joules / tokens, "mean_w": joules / duration}


# 90 % intervals: the whole simulation again, with times that err as the predictor says it may


def _intervals(q: Question, w: Workload, seed: int, draws: int, pool: Pool | None) -> dict[str, Any]:
    tasks = [(q, w, factors) for factors in _factors(setup(q), w, seed, draws)]
    rows = spread_out(_redo, tasks, pool)
    out: dict[str, Any] = {"draws": draws}
    for name in rows[0]:
        values = sorted(r[name] for r in rows)
        low = values[int(0.05 * len(values))]
        high = values[min(len(values) - 1, math.ceil(0.95 * len(values)) - 1)]
        figure, _, part = name.partition(".")
        if part:
            out.setdefault(figure, {})[part] = [_short(low), _short(high)]
        else:
            out[name] = [_short(low), _short(high)]
    return out


def _redo(task: tuple[Question, Workload, Factors]) -> dict[str, float]:
    q, w, factors = task
    made = setup(q, factors)
    found = answer(q, made, w, run(made, q, w), 0)
    out = {"output_tokens_per_s": found.output_tokens_per_s}
    for name in figures.FIGURES:
        got = getattr(found, name)
        out |= {f"{name}.{k}": v for k, v in got._asdict().items()} if got else {}
    return out


def _factors(made: Setup, w: Workload, seed: int, draws: int) -> list[Factors]:
    times = made.surface.times
    prompt = max(1, min(sum(w.prompt) // len(w), made.settings.max_num_batched_tokens))
    context = max(1, min(made.longest, prompt + sum(w.output) // len(w) // 2))
    spreads = (
        times.spread(step((Seq(1, context, 16),))),
        times.spread(step((Seq(1, context, 16), Seq(prompt, 0, 1)))),
        times.host_spread(),
    )
    draw = random.Random(f"intervals {seed}")
    return [Factors(*(_drawn(s, draw.gauss(0.0, 1.0)) for s in spreads)) for _ in range(draws)]


def _drawn(spread: Spread, z: float) -> float:
    """Lognormal on each side of 1, with the predictor's 90 % interval."""
    edge = spread.high if z > 0 else spread.low
    return float(max(edge, 1e-3) ** (abs(z) / Z90))
