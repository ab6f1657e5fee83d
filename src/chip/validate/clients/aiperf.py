"""AIPerf: `profile_export.jsonl`, a line a request, and `profile_export_aiperf.json`, the summary of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from chip.types import ChipError
from chip.validate.client_result import ClientResult, from_totals, number, spread, users_of, workload_of

NAME = "AIPerf"
METRICS = {  # its names; inter_token_latency is a request's mean, inter_chunk_latency has every value
    "time_to_first_token": "ttft", "inter_token_latency": "tpot", "inter_chunk_latency": "itl",
    "request_latency": "e2el",
}  # fmt: skip
PARTS = {"avg": "mean", "p50": "median", "p90": "p90", "p95": "p95", "p99": "p99"}
MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "milliseconds": 1.0}


def results(rows: Sequence[Any], path: Path) -> list[ClientResult] | None:
    first = rows[0] if isinstance(rows[0], dict) else {}
    if isinstance(first.get("metadata"), dict) and "request_start_ns" in first["metadata"]:
        return _records(rows, path)
    if len(rows) == 1 and isinstance(first.get("request_latency"), dict) and "unit" in first["request_latency"]:
        return [_summary(first, path)]
    return None


def _ms(metric: Any, where: str) -> float:
    factor = MS.get(str(metric.get("unit"))) if isinstance(metric, dict) else None
    if factor is None:
        raise ChipError(f"{where} must have a value and a unit of time, got {str(metric)[:60]}")
    return factor


def _records(rows: Sequence[Any], path: Path) -> list[ClientResult]:
    kept = [(i, row) for i, row in enumerate(rows) if _counts(row, f"{path}: line {i + 1}")]
    if not kept:
        return []
    values: dict[str, list[float]] = {name: [] for name in METRICS.values()}
    prompt, output, begin_s, end_s = [], [], [], []
    for i, row in kept:
        where, metrics, about = f"{path}: line {i + 1}", row["metrics"], row["metadata"]
        for key, name in METRICS.items():
            if key in metrics:
                value = metrics[key].get("value") if isinstance(metrics[key], dict) else None
                several = value if isinstance(value, list) else [value]
                values[name] += [number(v, f"{where}: {key}") * _ms(metrics[key], f"{where}: {key}") for v in several]
        prompt.append(_tokens(metrics, "input_sequence_length", where))
        output.append(_tokens(metrics, "output_sequence_length", where))
        begin_s.append(number(about.get("request_start_ns"), f"{where}: request_start_ns") * 1e-9)
        end_s.append(number(about.get("request_end_ns"), f"{where}: request_end_ns") * 1e-9)
    users = users_of(begin_s, end_s)
    w = workload_of(NAME, prompt, output, users=users, arrival_s=begin_s)
    took_s = max(end_s) - min(begin_s)
    figures = dict(pair for name, of in values.items() for pair in spread(name, of))
    if took_s:
        figures |= {"output_throughput": sum(output) / took_s, "request_throughput": len(kept) / took_s}
    notes = (f"as {users} requests are under way whenever one is sent, they are taken for users in a loop",)
    left = [f"{len(rows) - len(kept)} requests that warmed up or failed are left out"] if len(rows) > len(kept) else []
    return [ClientResult(NAME, path, "", w, figures, notes=((*notes, *left) if users else tuple(left)))]


def _counts(row: Any, where: str) -> bool:
    if not (isinstance(row, dict) and isinstance(row.get("metadata"), dict) and isinstance(row.get("metrics"), dict)):
        raise ChipError(f"{where}: must have metadata and metrics")
    about = row["metadata"]
    return not row.get("error") and about.get("benchmark_phase", "profiling") == "profiling" and bool(row["metrics"])


def _tokens(metrics: Mapping[str, Any], key: str, where: str) -> int:
    metric = metrics.get(key)
    return int(number(metric.get("value") if isinstance(metric, dict) else None, f"{where}: {key}"))


def _summary(row: Mapping[str, Any], path: Path) -> ClientResult:
    figures: dict[str, float] = {}
    for key, name in METRICS.items():
        if isinstance(row.get(key), dict):
            factor = _ms(row[key], f"{path}: {key}")
            for part, called in PARTS.items():
                if row[key].get(part) is not None:
                    figures[f"{called}_{name}_ms"] = number(row[key][part], f"{path}: {key}.{part}") * factor
    if "mean_ttft_ms" not in figures:
        raise ChipError(f"{path}: has no time_to_first_token: were the answers streamed (--streaming)?")
    for key, name in (("output_token_throughput", "output_throughput"), ("request_throughput", "request_throughput")):
        if isinstance(row.get(key), dict) and row[key].get("avg") is not None:
            figures[name] = number(row[key]["avg"], f"{path}: {key}.avg")
    asked = row.get("input_config") or {}
    phases = asked.get("phases") if isinstance(asked, dict) else None
    load = phases[-1] if isinstance(phases, list) and phases else asked  # those before warm up
    rate = number(first_value(load, "rate", "request_rate") or 0.0, f"{path}: rate")
    users = 0 if rate else int(number(first_value(load, "concurrency") or 0, f"{path}: concurrency"))
    counts = [_mean(row, key, path) for key in ("request_count", "input_sequence_length", "output_sequence_length")]
    w, notes = from_totals(NAME, int(counts[0]), counts[1], counts[2], rate=rate, users=users)
    models = next(every_value(asked, "models"), None)
    model = first_value(models, "name") or first_value(asked, "model_names", "models", "model")
    gpus = {str(name) for name in every_value(row.get("telemetry_data"), "gpu_name")}
    return ClientResult(NAME, path, str(model or ""), w, figures, gpu=gpus.pop() if len(gpus) == 1 else "", notes=notes)


def _mean(row: Mapping[str, Any], key: str, path: Path) -> float:
    metric = row.get(key)
    return number(metric.get("avg") if isinstance(metric, dict) else None, f"{path}: {key}.avg")


def every_value(value: Any, key: str) -> Iterator[Any]:
    """All values under this key, wherever they are: the layout of a configuration changes between versions."""
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        for inner in value.values():
            yield from every_value(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from every_value(inner, key)


def first_value(value: Any, *keys: str) -> Any:
    for key in keys:
        for found in every_value(value, key):
            found = found[0] if isinstance(found, list) and found else found
            if isinstance(found, (str, int, float)) and found:
                return found
    return None
