"""The answer to a simulation: figures of all requests, of the cache, of the GPUs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from chip.engines.server import NONE
from chip.files import output
from chip.simulator import figures, gaps, slo, tool_figures
from chip.simulator.figures import Percentiles
from chip.simulator.fleet import ServedRequests
from chip.simulator.occupancy import Occupancy
from chip.simulator.setup import Fleet, Setup
from chip.simulator.step_time import StepPredictor
from chip.simulator.workload import Workload

SCHEMA = "chip.simulation/1"
TIMELINE = "chip.timeline/1"
REQUESTS = output.Kind("a list of simulated requests", re.compile(rb'\{"request": 0, "arrival_s": '))


@dataclass(frozen=True, slots=True)
class Simulation:
    """The answer. Times are of requests that were answered; `interval` holds the 90 % interval of each figure."""

    fleet: Fleet
    kv_dtype: str
    workload: str
    rate_per_s: float
    users: int  # of a closed loop; 0 where arrivals are planned
    seed: int
    requests: int
    completed: int
    rejected: int
    shortened: int
    duration_s: float
    output_tokens_per_s: float
    requests_per_s: float
    ttft_s: Percentiles | None
    tpot_s: Percentiles | None
    itl_s: Percentiles | None  # between chunks of all requests
    e2e_s: Percentiles | None
    queue_s: Percentiles | None
    goodput: dict[str, Any] | None
    kv: dict[str, float]
    preemptions: int
    cache_hit_rate: float
    energy: dict[str, float] | None
    gpu_busy: float
    queue_grows: bool  # until the last one came: the figures depend on how many requests did
    steps: int
    settings: dict[str, Any]
    host: str
    interval: dict[str, Any] | None
    of_tools: dict[str, Any]  # as `vllm bench serve` names and defines them
    notes: list[str] = field(default_factory=list)
    served: ServedRequests | None = None
    timelines: tuple[Occupancy, ...] = ()

    def json(self) -> dict[str, Any]:
        fleet, q, cost = self.fleet, self.fleet.question, self.fleet.server
        out: dict[str, Any] = {"schema": SCHEMA, "model": q.model.name, "gpu": q.gpu, "engine": q.engine}
        out |= {
            "dtype": q.dtype,
            "kv_dtype": self.kv_dtype,
            "tp": q.tp,
            "pp": q.pp,
            "ep": q.ep,
            "gpus": fleet.gpus,
            **_apart(fleet),
        }
        out |= {
            "sampling": q.sampling,
            "host": self.host,
            "replicas": fleet.replicas,
            "router": fleet.router,
            "workload": self.workload,
        }
        out["server"] = {"request_ms": cost.request_s * 1e3, "token_us": cost.token_s * 1e6} if cost != NONE else None
        for name in ("rate_per_s", "users", "seed", "requests", "completed", "rejected", "shortened"):
            out[name] = short(getattr(self, name))
        for name in ("duration_s", "output_tokens_per_s", "requests_per_s"):
            out[name] = short(getattr(self, name))
        for name in figures.FIGURES:
            found = getattr(self, f"{name}_s")
            out[f"{name}_ms"] = {k: short(v * 1e3) for k, v in found._asdict().items()} if found else None
        slo_ms = {"slo": {name: s * 1e3 for name, s in self.goodput["slo"].items()}} if self.goodput else {}
        out["goodput"] = short({**self.goodput, **slo_ms}) if self.goodput else None
        for name in ("kv", "preemptions", "cache_hit_rate", "energy", "gpu_busy", "queue_grows", "steps", "settings"):
            out[name] = short(getattr(self, name))
        out["interval"] = _in_ms(self.interval) if self.interval else None
        out |= short(self.of_tools)
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


def _in_ms(interval: dict[str, Any]) -> dict[str, Any]:
    """As JSON has it: figures by their names in milliseconds."""
    out = dict[str, Any]()
    for name, ends in interval.items():
        if isinstance(ends, dict):
            out[f"{name.removesuffix('_s')}_ms"] = {k: [short(v * 1e3) for v in pair] for k, pair in ends.items()}
        else:
            out[name] = [short(v) for v in ends] if isinstance(ends, tuple) else ends
    return out


def short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    return value


def answer(
    fleet: Fleet, made: Setup, w: Workload, done: ServedRequests, seed: int, targets: Sequence[slo.Target] = ()
) -> Simulation:
    by_metric = figures.latencies(done)
    of = {m: figures.percentiles(by_metric[m]) for m in by_metric}
    answered = [i for i in range(len(w)) if done.last_s[i] >= 0]
    begin = min((done.arrival_s[i] for i in answered), default=0.0)
    duration = max((done.last_s[i] for i in answered), default=begin) - begin
    tokens = sum(done.output[i] for i in answered)
    engines = done.engines
    grows = bool(w.rate_per_s) and figures.grows(done, _alone_s(made, w))
    notes = [*w.notes, *made.notes, *_notes(w, done, made.longest)]
    if grows:
        notes.append(
            f"the queue still grew when the last of {len(w)} requests came, and times rise with their number: "
            f"either {w.rate_per_s:.4g} requests/s are more than is served, or the engine was still filling up"
        )
    goodput = _goodput(done, len(w), duration, targets) if targets else None
    total_prompt = sum(e.prompt_tokens + e.found_tokens for e in engines)
    return Simulation(
        fleet=fleet,
        kv_dtype=made.surface.times.kv_dtype,
        workload=w.name,
        rate_per_s=w.rate_per_s,
        users=w.users,
        seed=seed,
        requests=len(w),
        completed=len(answered),
        rejected=len(done.rejected),
        shortened=done.shortened,
        duration_s=duration,
        output_tokens_per_s=tokens / duration if duration else 0.0,
        requests_per_s=len(answered) / duration if duration else 0.0,
        ttft_s=of["ttft"],
        tpot_s=of["tpot"],
        itl_s=figures.percentiles_of(gaps.seconds(e.gaps for e in engines)),
        e2e_s=of["e2e"],
        queue_s=of["queue"],
        goodput=goodput,
        kv=_kv(made, done, duration),
        preemptions=sum(e.preemptions for e in engines),
        cache_hit_rate=sum(e.found_tokens for e in engines) / total_prompt if total_prompt else 0.0,
        energy=_energy(made.surface.times, fleet, done, duration, tokens),
        gpu_busy=sum(e.busy_s for e in engines) / (duration * len(engines)) if duration else 0.0,
        queue_grows=grows,
        steps=sum(e.steps for e in engines),
        settings={
            **(asdict(made.options) if made.options else {}),
            "num_gpu_blocks": made.blocks + made.settings.reserved_blocks,
            "max_model_len": made.longest,
        },
        host=made.surface.times.host_name,
        interval=None,
        of_tools=tool_figures.figures_of(w, done, duration, fleet.gpus, goodput),
        notes=notes,
    )


def _alone_s(made: Setup, w: Workload) -> float:
    """What a request of mean lengths takes on an idle engine."""
    prompt, output = max(1, sum(w.prompt) // len(w)), sum(w.output) / len(w)
    first_s = made.surface.mixed(0, 0.0, [(min(prompt, made.settings.max_num_batched_tokens), 0)]).seconds
    return first_s + output * made.surface.decode(1, prompt + output / 2).seconds


def _notes(w: Workload, done: ServedRequests, longest: int) -> list[str]:
    notes = []
    if done.rejected:
        i = done.rejected[0]
        notes.append(
            f"{len(done.rejected)} of {len(w)} requests were rejected: the prompt leaves no room in the "
            f"context of {longest} tokens (the first is request {i}, of {w.prompt[i]})"
        )
    if done.shortened:
        notes.append(f"{done.shortened} answers were cut off where the context of {longest} tokens ends")
    return notes


def _goodput(done: ServedRequests, asked: int, duration: float, targets: Sequence[slo.Target]) -> dict[str, Any]:
    good = sum(figures.meets(done, i, targets) for i in range(asked))
    return {
        "slo": {t.name: t.seconds for t in targets},
        "share": good / asked,
        "requests_per_s": good / duration if duration else 0.0,
    }


def _kv(made: Setup, done: ServedRequests, duration: float) -> dict[str, float]:
    held = sum(e.used_block_s for e in done.engines)
    return {
        "blocks": made.blocks,
        "mean_share": held / (made.blocks * duration * len(done.engines)) if duration else 0.0,
        "peak_share": max(e.peak_blocks for e in done.engines) / made.blocks,
    }


def _apart(fleet: Fleet) -> dict[str, Any]:
    """Workers for prompts, and for decodes, and the link between them."""
    if not fleet.before:
        return {}
    return {"prefill_workers": fleet.before.replicas, "decode_workers": fleet.replicas, "kv_link": fleet.link}


def _energy(
    times: StepPredictor, fleet: Fleet, done: ServedRequests, duration: float, tokens: int
) -> dict[str, float] | None:
    """All GPUs together, idle power included."""
    if fleet.before:  # what the GPUs for prompts draw is not added up
        return None
    idle_w = times.idle_w()
    if idle_w is None or not tokens:
        return None
    joules = fleet.question.tp * sum(e.joules for e in done.engines) + idle_w * duration * fleet.gpus
    return {"joules": joules, "joules_per_output_token": joules / tokens, "mean_w": joules / duration}
