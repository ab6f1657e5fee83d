"""Simulated traffic against traffic that was really served: latency percentiles and output rate of every run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chip import stats
from chip.hardware import gpus
from chip.simulator import figures, recorded
from chip.simulator.fleet import ServedRequests
from chip.simulator.recorded import TrafficRun
from chip.simulator.simulation import simulate
from chip.types import ChipError

SCHEMA = "chip.traffic_validation/1"
# what is judged: figure and part, and the median error over rates that it should stay within
TARGETS: dict[str, float | None] = {
    "ttft_ms.mean": 0.12,
    "ttft_ms.p50": None,
    "ttft_ms.p99": 0.25,
    "tpot_ms.mean": 0.06,
    "tpot_ms.p50": None,
    "tpot_ms.p99": None,
    "output_tokens_per_s": 0.03,
}


@dataclass(frozen=True, slots=True)
class JudgedTraffic:
    """One figure of one run."""

    run: TrafficRun
    gpu: str
    metric: str
    predicted: float
    low: float | None
    high: float | None
    measured: float
    by_request: tuple[float, ...] = ()  # of a mean: the error of every request

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def inside(self) -> bool | None:
        return None if self.low is None or self.high is None else self.low <= self.measured <= self.high


def judge(paths: Sequence[Path], gpu: str = "", draws: int = 20) -> tuple[list[JudgedTraffic], list[str]]:
    """Every figure of every ok run, and what could not be judged."""
    return judge_runs([run for path in paths for run in _of_one_host(recorded.read(path)[1].runs)], gpu, draws)


def _of_one_host(runs: Sequence[TrafficRun]) -> Iterator[TrafficRun]:
    """A server's host is busy with more than launching: all that a file has of its latency stands for each run."""
    everything = tuple(ns for run in runs for ns in run.launch_ns)
    for run in runs:
        yield replace(run, launch_ns=(sum(everything) / len(everything),)) if run.server and everything else run


def judge_runs(runs: Iterable[TrafficRun], gpu: str = "", draws: int = 20) -> tuple[list[JudgedTraffic], list[str]]:
    judged: list[JudgedTraffic] = []
    left_out: list[str] = []
    for run in runs:
        if run.status != "ok":
            left_out.append(f"{run.title}: {run.status} ({run.reason})")
            continue
        try:
            judged += _judge(run, gpu or gpus.match_device(run.device), draws)
        except ChipError as e:
            left_out.append(f"{run.title}: cannot be simulated ({e})")
    return judged, left_out


def measured(run: TrafficRun) -> dict[str, float]:
    done = run.served()
    by_metric = figures.latencies(done)
    out: dict[str, float] = {}
    for metric in ("ttft", "tpot"):
        got = figures.percentiles([1e3 * v for v in by_metric[metric]])
        out |= {f"{metric}_ms.{k}": v for k, v in got._asdict().items()} if got else {}
    answered = [i for i in range(len(run.prompt)) if run.last_s[i] >= 0]
    duration = max(run.last_s[i] for i in answered) - min(run.came_s[i] for i in answered)
    out["output_tokens_per_s"] = sum(run.output[i] for i in answered) / duration
    return out


def _judge(run: TrafficRun, gpu: str, draws: int) -> list[JudgedTraffic]:
    if not gpu:
        raise ChipError(f"no GPU is known for {run.device or 'a device it does not name'}; give --gpu")
    simulated = simulate(
        run.model,
        workload=run.traffic(),
        gpu=gpu,
        engine=run.engine,
        dtype=run.dtype,
        tp=run.tp,
        ep=run.ep,
        engine_settings=run.scheduler,
        draws=draws,
        launch_ns=stats.median(run.launch_ns) if run.launch_ns else 0.0,
        server=run.server,
        sampling=run.sampling,
    )
    answer, real = simulated.json(), measured(run)
    errors = _by_request(run, simulated.served)
    out = []
    for metric in TARGETS:
        figure, _, part = metric.partition(".")
        value = answer[figure][part] if part else answer[figure]
        span = (answer["interval"] or {}).get(figure)
        low, high = (span[part] if part else span) if span else (None, None)
        spread = errors.get(figure.removesuffix("_ms"), ()) if part == "mean" else ()
        out.append(JudgedTraffic(run, gpu, metric, value, low, high, real[metric], spread))
    return out


def _by_request(run: TrafficRun, served: ServedRequests | None) -> dict[str, tuple[float, ...]]:
    """Errors of TTFT and TPOT request by request."""
    assert served is not None
    real_ones, out = run.served(), {}
    answered = [i for i in range(len(run.prompt)) if run.last_s[i] >= 0 <= served.last_s[i]]
    for metric in ("ttft", "tpot"):
        both = [tuple(figures.latency_s(done, i, metric) for done in (served, real_ones)) for i in answered]
        out[metric] = tuple(predicted / real - 1 for predicted, real in both if real > 0)
    return out


def document(
    points: Sequence[JudgedTraffic], left_out: Sequence[str], targets: Mapping[str, float | None] = TARGETS
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "metrics": [row for metric in TARGETS if (row := _summary(points, metric, targets.get(metric)))],
        "left_out": list(left_out),
        "points": [
            {"gpu": p.gpu, "tp": p.run.tp, "ep": p.run.ep, "version": p.run.engine_version}
            | {"model": p.run.model, "engine": p.run.engine, "variant": p.run.variant, "workload": p.run.workload}
            | {"rate_per_s": p.run.rate_per_s, "requests": len(p.run.prompt), "metric": p.metric}
            | {"predicted": p.predicted, "low": p.low, "high": p.high, "measured": p.measured}
            | {"error": p.error, "inside": p.inside}
            | ({"by_request": _spread(p.by_request)} if p.by_request else {})
            for p in points
        ],
    }


def _spread(errors: Sequence[float]) -> dict[str, float]:
    """How far off single requests are."""
    sizes = sorted(abs(e) for e in errors)
    return {"median": stats.median(sizes), "p90": sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]}


def _summary(points: Sequence[JudgedTraffic], metric: str, target: float | None) -> dict[str, Any] | None:
    those = [p for p in points if p.metric == metric]
    if not those:
        return None
    errors = [abs(p.error) for p in those]
    inside = [p.inside for p in those if p.inside is not None]
    middle = stats.median(errors)
    return {
        "metric": metric,
        "runs": len(those),
        "median_error": middle,
        "worst_error": max(errors),
        "bias": stats.median([p.error for p in those]),
        "coverage": sum(inside) / len(inside) if inside else None,
        "target": target,
        "met": None if target is None else middle <= target,
    }
