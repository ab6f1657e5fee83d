"""What is compared: one metric of one run, as measured and as predicted, in SI units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from chip import stats
from chip.files.runs import Run
from chip.types import Scenario

GPU_BOUND = 0.95  # share of a step that the device must have worked for the step to count as the device's
CHIP = "chip"
MOST_PARTS = 3
GPU, HOST, UNKNOWN = "gpu", "host", ""


class Predicted(NamedTuple):
    value: float
    low: float | None = None
    high: float | None = None


class Part(NamedTuple):
    """A line of a prediction's breakdown."""

    role: str
    share: float
    source: str


@dataclass(frozen=True, slots=True)
class Point:
    who: str  # "chip", or another predictor with its version
    model: str
    engine: str
    variant: str
    scenario: Scenario
    metric: str
    predicted: float
    low: float | None  # of the 90 % interval; None where the predictor gives none
    high: float | None
    measured: float
    bound: str  # as measured: "gpu", "host", or "" where the device's activity was not recorded
    latency_known: bool = False  # predicted at the launch latency that was measured beside the run
    called: str = ""  # by the prediction: host, where its device waits for more than a GPU-bound one may; else by most
    run: str = ""  # id of the run
    parts: tuple[Part, ...] = ()  # what most of the prediction is made of, the largest first

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool | None:
        return None if self.low is None or self.high is None else self.low <= self.measured <= self.high

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval over the prediction: 0.1 is +-10 %."""
        return None if self.low is None or self.high is None else (self.high - self.low) / 2 / self.predicted

    @property
    def tokens(self) -> int:
        return self.scenario.batch * self.scenario.prompt


class Metric(NamedTuple):
    """How one metric is read from the JSON of a prediction and from a run; None where either has none."""

    unit: str
    predicted: Callable[[Mapping[str, Any]], Predicted | None]
    measured: Callable[[Run], float | None]
    phase: str  # whose busy share tells GPU-bound from host-bound: "prefill", "decode", "whole", or "" for neither


def _timed(key: str, scale: float) -> Callable[[Mapping[str, Any]], Predicted | None]:
    def read(answer: Mapping[str, Any]) -> Predicted | None:
        value, span = answer.get(key), answer["interval"].get(key)
        if value is None:
            return None
        return Predicted(value * scale, span[0] * scale, span[1] * scale) if span else Predicted(value * scale)

    return read


def _bytes(without: str = "") -> Callable[[Mapping[str, Any]], Predicted | None]:
    """All that the device holds, `without` one part. An engine that fills the card whatever it is asked (its KV pool
    has a size instead) has no such number."""

    def read(answer: Mapping[str, Any]) -> Predicted | None:
        m = answer["memory"]
        return None if "kv_capacity_tokens" in m else Predicted(m["total_bytes"] - m.get(without, 0))

    return read


def _kv_pool(answer: Mapping[str, Any]) -> Predicted | None:
    tokens = answer["memory"].get("kv_capacity_tokens")
    return Predicted(tokens) if tokens else None


def _joules_per_token(run: Run) -> float | None:
    """As the meter reads: the idle power that a run subtracts is added again, since the prediction has it."""
    joules = run.joules_per_token
    if joules is None or run.energy is None:
        return None
    return joules + run.energy.idle_w * run.e2e_s / (run.scenario.batch * run.scenario.output)


FIRST = "ttft"
METRICS: dict[str, Metric] = {
    FIRST: Metric("s", _timed("ttft_ms", 1e-3), lambda r: r.ttft_s, "prefill"),
    "tpot": Metric("s", _timed("tpot_ms", 1e-3), lambda r: r.tpot_s if r.decodes else None, "decode"),
    "e2e": Metric("s", _timed("e2e_ms", 1e-3), lambda r: r.e2e_s, "whole"),
    "tokens_per_s": Metric("tok/s", _timed("tokens_per_s", 1.0), lambda r: r.tokens_per_s, "whole"),
    "joules_per_token": Metric("J/tok", _timed("energy_j_per_token", 1.0), _joules_per_token, "whole"),
    # tensors alone, as the framework's allocator counts them; and with the context, but not what its blocks round up
    "memory": Metric("B", _bytes("context_bytes"), lambda r: r.memory.get("allocated_peak_bytes"), ""),
    "device_memory": Metric("B", _bytes(), lambda r: r.memory.get("device_peak_bytes"), ""),
    "kv_cache_tokens": Metric("tok", _kv_pool, lambda r: r.memory.get("kv_cache_tokens"), ""),
}


def busy_share(run: Run, phase: str) -> float | None:
    """Share of a phase, or of the whole request, that the device worked."""
    if phase != "whole":
        return run.busy.get(phase)
    if not run.decodes:
        return run.busy.get("prefill")
    prefill, decode = run.busy.get("prefill"), run.busy.get("decode")
    if prefill is None or decode is None:
        return None
    first = min(1.0, run.ttft_s / run.e2e_s)
    return prefill * first + decode * (1 - first)


def bound_of(run: Run, phase: str) -> str:
    share = busy_share(run, phase)
    return UNKNOWN if share is None else GPU if share >= GPU_BOUND else HOST


def compare(
    run: Run, answers: Mapping[str, Mapping[str, Any]], run_id: str, latency_known: bool = False
) -> list[Point]:
    """Every metric that both the prediction and the run have. Each has an answer of its own: that at the launch latency
    measured beside it, where it is known."""
    points = []
    for name, metric in METRICS.items():
        answer = answers[name]
        predicted, measured = metric.predicted(answer), metric.measured(run)
        if predicted is None or not measured:
            continue
        bound, lines = bound_of(run, metric.phase), answer["breakdown"].get(name, ())
        waits = sum(line["share"] for line in lines if line["bound"] == HOST)
        called = HOST if waits > 1 - GPU_BOUND else answer["bound"].get(name) or ""
        parts = tuple(Part(line["role"], line["share"], line["source"]) for line in lines[:MOST_PARTS])
        about = (run.model, run.engine, run.variant, run.scenario, name)
        points.append(Point(CHIP, *about, *predicted, measured, bound, latency_known, called, run_id, parts))
    return points


@dataclass(frozen=True, slots=True)
class ErrorSummary:
    """Errors of several points. Absolute but for the bias, which is the median with its sign."""

    points: int
    models: int
    median: float
    p90: float
    bias: float
    worst: float
    intervals: int  # points that have one; the next two are of these
    coverage: float | None
    half_width: float | None  # median


def summarise(points: Sequence[Point]) -> ErrorSummary:
    errors = [p.error for p in points]
    absolute = [abs(e) for e in errors]
    inside = [p.inside for p in points if p.inside is not None]
    widths = [w for w in (p.half_width for p in points) if w is not None]
    return ErrorSummary(
        len(points),
        len({p.model for p in points}),
        stats.median(absolute),
        stats.quantile(absolute, 0.9),
        stats.median(errors),
        max(absolute),
        len(inside),
        sum(inside) / len(inside) if inside else None,
        stats.median(widths) if widths else None,
    )
