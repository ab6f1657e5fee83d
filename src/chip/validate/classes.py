"""Which errors belong together: the classes that have a target, and every engine, variant and metric there is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from chip import stats
from chip.validate.judge import Validation
from chip.validate.points import FIRST, GPU, HOST, METRICS, ErrorSummary, Point, summarise

COVERAGE = (0.85, 0.97)  # of 90 % intervals, asked of each metric that has COVERAGE_POINTS points
COVERED = ("ttft", "tpot", "joules_per_token")  # the metrics it is asked of
COVERAGE_POINTS = 100
LEAST_REPEATED = 10  # points of a class that other hosts measured too, from which on it is shown
GPU_BOUND_HALF_WIDTH = 0.10
FLASH, KNOWN = "sdpa=flash", "launch latency known"
STEPS = ("ttft", "tpot")  # what is a phase of its own, and so the device's or the host's


@dataclass(frozen=True, slots=True)
class Class:
    """Points of one kind, with the largest median and 90th percentile of error that are asked for, where they are."""

    title: str
    metrics: tuple[str, ...]
    median: float | None = None
    p90: float | None = None
    engine: str = ""  # "" for any
    bound: str = ""
    least_tokens: int = 0  # batch x prompt
    setting: str = ""  # what the variant must name, such as sdpa=flash
    latency_known: bool = False  # only predictions at the launch latency that was measured beside the run

    def has(self, p: Point) -> bool:
        return (
            p.metric in self.metrics
            and self.engine in ("", p.engine)
            and self.bound in ("", p.bound)
            and p.tokens >= self.least_tokens
            and (not self.setting or self.setting in p.variant.split(","))
            and (p.latency_known or not self.latency_known)
        )


CLASSES = (
    Class("vLLM TPOT, GPU-bound", ("tpot",), 0.02, 0.05, "vllm", GPU),
    Class("vLLM TTFT, >= 4096 tokens", ("ttft",), 0.02, 0.05, "vllm", least_tokens=4096),
    Class("vLLM TTFT, all", ("ttft",), engine="vllm"),
    Class(f"vLLM TTFT, {KNOWN}", ("ttft",), 0.08, 0.25, "vllm", latency_known=True),
    Class("hf-graph TPOT and TTFT", ("tpot", "ttft"), 0.03, 0.07, "hf-graph"),
    Class("hf-eager TTFT, >= 8192 tokens", ("ttft",), 0.025, 0.07, "hf-eager", least_tokens=8192),
    Class("hf-eager TPOT, flash", ("tpot",), engine="hf-eager", setting=FLASH),
    Class(f"hf-eager TPOT, flash, {KNOWN}", ("tpot",), 0.15, 0.30, "hf-eager", setting=FLASH, latency_known=True),
    Class("energy per token", ("joules_per_token",), 0.10),
)


@dataclass(frozen=True, slots=True)
class JudgedClass:
    """A class with what its points came to, and the worst of them; `met` is None where nothing is asked or found."""

    wanted: Class
    found: ErrorSummary | None
    worst: Point | None = None

    @property
    def met(self) -> bool | None:
        if self.found is None or self.wanted.median is None:
            return None
        return self.found.median <= self.wanted.median and (
            self.wanted.p90 is None or self.found.p90 <= self.wanted.p90
        )


def judge_classes(points: Sequence[Point]) -> list[JudgedClass]:
    out = []
    for wanted in CLASSES:
        members = [p for p in points if wanted.has(p)]
        worst = max(members, key=lambda p: abs(p.error), default=None)
        out.append(JudgedClass(wanted, summarise(members) if members else None, worst))
    return out


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    engine: str
    variant: str
    metric: str
    bound: str  # "all", "gpu" or "host"
    found: ErrorSummary


def groups(points: Sequence[Point]) -> list[ErrorGroup]:
    """By engine, variant and metric: all, and where device activity was recorded, GPU-bound and host-bound apart."""
    out = []
    for engine, variant in dict.fromkeys((p.engine, p.variant) for p in points):
        for metric in METRICS:
            here = [p for p in points if (p.engine, p.variant, p.metric) == (engine, variant, metric)]
            for bound in ("all", GPU, HOST):
                members = [p for p in here if bound in ("all", p.bound)]
                if members and not (bound == GPU and len(members) == len(here)):
                    out.append(ErrorGroup(engine, variant, metric, bound, summarise(members)))
    return out


def intervals(points: Sequence[Point]) -> dict[str, Any]:
    """How many measured values the 90 % intervals hold, metric by metric (`met`: whether that is as asked, None with
    too few points to tell); of TTFT and TPOT together; and how wide they are where the device is the limit."""
    members = [p for p in points if p.metric in STEPS and p.inside is not None]
    on_gpu = [p for p in members if p.bound == GPU]
    return {
        "points": len(members),
        "coverage": summarise(members).coverage if members else None,
        "gpu_bound_points": len(on_gpu),
        "gpu_bound_half_width": summarise(on_gpu).half_width if on_gpu else None,
        "metrics": {metric: _coverage([p for p in points if p.metric == metric]) for metric in COVERED},
    }


def _coverage(points: Sequence[Point]) -> dict[str, Any]:
    inside = [p.inside for p in points if p.inside is not None]
    share = sum(inside) / len(inside) if inside else None
    enough = share is not None and len(inside) >= COVERAGE_POINTS
    return {
        "points": len(inside),
        "coverage": share,
        "met": COVERAGE[0] <= share <= COVERAGE[1] if enough and share is not None else None,
    }


def host_bound(points: Sequence[Point]) -> list[Point]:
    """Steps during which the device waited: whether the prediction calls them host-bound is in `called`."""
    return [p for p in points if p.bound == HOST and p.metric in STEPS]


def gpu_bound(points: Sequence[Point]) -> list[Point]:
    return [p for p in points if p.bound == GPU and p.metric in STEPS]


def repeats(v: Validation) -> list[dict[str, Any]]:
    """By class: how far each point is from the median of the other files, each of which is of one host. No prediction
    that does not know the host can be asked for less."""
    alike: dict[Any, dict[str, list[Point]]] = {}
    for p in v.points:
        output = 1 if p.metric == FIRST else p.scenario.output
        key = p.model, p.engine, p.variant, p.metric, replace(p.scenario, output=output)
        alike.setdefault(key, {}).setdefault(v.files[p.run], []).append(p)
    errors = [
        (p, stats.median(others) / p.measured - 1)
        for by_file in alike.values()
        for file, members in by_file.items()
        if (others := [o.measured for f, measured in by_file.items() if f != file for o in measured])
        for p in members
    ]
    rows = []
    for wanted in CLASSES:
        sizes = [abs(e) for p, e in errors if wanted.has(p)]
        if len(sizes) >= LEAST_REPEATED:
            about = {"class": wanted.title, "points": len(sizes)}
            rows.append(about | {"median": stats.median(sizes), "p90": stats.quantile(sizes, 0.9)})
    return rows
