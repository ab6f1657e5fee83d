"""guidellm: its JSON report, with a benchmark for each rate or number of streams.

Its inter_token_latency_ms is a request's mean after the first token, here `tpot`; its time_per_output_token_ms counts
the first token in, and has no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chip.types import ChipError
from chip.validate.client_result import ClientResult, from_totals, number, workload_of
from chip.validate.clients.aiperf import first_value

NAME = "guidellm"
METRICS = {
    "time_to_first_token_ms": ("ttft", 1.0), "inter_token_latency_ms": ("tpot", 1.0), "request_latency": ("e2el", 1e3),
}  # fmt: skip
RATES = {"output_tokens_per_second": "output_throughput", "requests_per_second": "request_throughput"}
RATED, STREAMS = ("constant", "poisson", "async"), ("concurrent", "synchronous")


def results(rows: Sequence[Any], path: Path) -> list[ClientResult] | None:
    row = rows[0]
    if len(rows) > 1 or not isinstance(row, dict) or not isinstance(row.get("benchmarks"), list):
        return None
    if not all(isinstance(b, dict) and "metrics" in b for b in row["benchmarks"]):
        return None
    asked = row.get("config") or row.get("args")
    return [_result(b, asked, f"{path}: benchmarks[{i}]", path) for i, b in enumerate(row["benchmarks"])]


def _result(b: Mapping[str, Any], asked: Any, where: str, path: Path) -> ClientResult:
    metrics, figures = b["metrics"], {}
    for key, (name, factor) in METRICS.items():
        summary = _successful(metrics, key, where)
        parts = {**summary, **(summary.get("percentiles") or {})}
        for part in ("mean", "median", "p90", "p95", "p99"):
            if parts.get(part) is not None:
                figures[f"{part}_{name}_ms"] = number(parts[part], f"{where}: {key}.{part}") * factor
    for key, name in RATES.items():
        figures[name] = number(_successful(metrics, key, where).get("mean"), f"{where}: {key}.mean")
    strategy = (b.get("config") or {}).get("strategy") or (b.get("scheduler") or {}).get("strategy") or {}
    kind = str(strategy.get("type_", ""))
    rate = number(strategy.get("rate"), f"{where}: strategy.rate") if kind in RATED else 0.0
    limit = strategy.get("streams") or strategy.get("max_concurrency") or (1 if kind == "synchronous" else 0)
    users = 0 if rate else int(number(limit, f"{where}: strategy.streams"))
    w, notes = _workload(b, metrics, where, rate, users)
    model = first_value(asked, "model", "model_name") or first_value(b, "model")
    return ClientResult(NAME, path, str(model or ""), w, figures, notes=notes)


def _workload(b: Mapping[str, Any], metrics: Mapping[str, Any], where: str, rate: float, users: int) -> Any:
    requests = b.get("requests")
    single = requests.get("successful") if isinstance(requests, dict) else None
    if single and all(isinstance(r, dict) and r.get("prompt_tokens") and r.get("output_tokens") for r in single):
        lengths = (
            [int(number(r[key], f"{where}: {key}")) for r in single] for key in ("prompt_tokens", "output_tokens")
        )
        starts = [r.get("request_start_time") for r in single]
        known = not users and all(isinstance(s, (int, float)) for s in starts)
        return workload_of(NAME, *lengths, rate=rate, users=users, arrival_s=starts if known else ()), ()
    prompt, output = (_successful(metrics, key, where) for key in ("prompt_token_count", "output_token_count"))
    count = int(number(prompt.get("count"), f"{where}: prompt_token_count.count"))
    means = [number(s.get("mean"), f"{where}: token counts") for s in (prompt, output)]
    return from_totals(NAME, count, *means, rate=rate, users=users)


def _successful(metrics: Any, key: str, where: str) -> Mapping[str, Any]:
    summary = metrics.get(key) if isinstance(metrics, dict) else None
    inside = summary.get("successful") if isinstance(summary, dict) else None
    if not isinstance(inside, dict):
        raise ChipError(f"{where}: metrics.{key}.successful is missing")
    return inside
