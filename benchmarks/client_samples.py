"""One recorded run in the formats of benchmarking clients: python benchmarks/client_samples.py RECORD FOLDER

The fields are those that the clients publish; the times are those of the record (`chip bench --server`), so that the
readers of `chip.validate.clients` are tested with what really happened. Nothing here is a client's code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chip.simulator import recorded
from chip.simulator.recorded import TrafficRun
from chip.stats import quantile

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
START_S = 1_790_000_000
RECORDS = 30  # lines of AIPerf's records
DIGITS = 6


def main(record: Path, folder: Path) -> None:
    runs = recorded.read(record)[1].runs
    rated, users = next(r for r in runs if r.rate_per_s), next(r for r in runs if r.users)
    documents: dict[str, Sequence[Any]] = {
        "vllm-bench.json": [vllm_bench(rated, "rate")], "vllm-bench-detailed.json": [vllm_bench(rated, "rate", True)],
        "sglang-bench.jsonl": [sglang_bench(rated), sglang_bench(users)],
        "aiperf-records.jsonl": [record_of(rated, i) for i in range(RECORDS)], "aiperf.json": [aiperf(users)],
        "guidellm.json": [{"metadata": {"version": 2}, "config": {"spec": {"backend": {"model": MODEL}}},
                           "benchmarks": [guidellm(rated), guidellm(users)]}],
        "inferencex.json": [[inferencex(users)]],
    }  # fmt: skip
    for name, rows in documents.items():
        lines = [json.dumps(short(row), indent=None if name.endswith("l") else 0) for row in rows]
        (folder / name).write_text("\n".join(lines) + "\n")


def short(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    return [short(v) for v in value] if isinstance(value, (list, tuple)) else value


def times(r: TrafficRun) -> dict[str, list[float]]:
    """Seconds by metric: of each request, and between all chunks."""
    several = [i for i, output in enumerate(r.output) if output > 1]
    return {
        "ttft": [first - at for first, at in zip(r.first_s, r.came_s)],
        "tpot": [(r.last_s[i] - r.first_s[i]) / (r.output[i] - 1) for i in several],
        "itl": [us * 1e-6 for gaps in r.gap_us for us in gaps],
        "e2el": [last - at for last, at in zip(r.last_s, r.came_s)],
    }


def parts(values: Sequence[float]) -> dict[str, float]:
    ends = {name: quantile(values, q) for name, q in (("median", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))}
    return {"mean": sum(values) / len(values), **ends}


def totals(r: TrafficRun) -> dict[str, float]:
    took_s = max(r.last_s) - min(r.came_s)
    tokens = sum(r.prompt) + sum(r.output)
    return {
        "duration": took_s, "completed": len(r.prompt), "total_input_tokens": sum(r.prompt),
        "total_output_tokens": sum(r.output), "request_throughput": len(r.prompt) / took_s,
        "output_throughput": sum(r.output) / took_s, "total_token_throughput": tokens / took_s,
    }  # fmt: skip


def vllm_bench(r: TrafficRun, label: str, detailed: bool = False) -> dict[str, Any]:
    row: dict[str, Any] = {
        "date": "20261119-202828", "endpoint_type": "vllm", "backend": "vllm", "label": label, "model_id": MODEL,
        "tokenizer_id": MODEL, "num_prompts": len(r.prompt), "request_rate": round(r.rate_per_s, 3) or "inf",
        "burstiness": 1.0, "max_concurrency": r.users or None, **totals(r), "failed": 0, "request_goodput": None,
    }  # fmt: skip
    if detailed:
        itls = [[us * 1e-6 for us in gaps] for gaps in r.gap_us]
        row |= {"input_lens": r.prompt, "output_lens": r.output, "ttfts": times(r)["ttft"], "itls": itls}
        row |= {"start_times": [START_S + at for at in r.came_s], "errors": [""] * len(r.prompt)}
    for metric in ("ttft", "tpot", "itl"):
        kept = {k: v for k, v in parts(times(r)[metric]).items() if k in ("mean", "median", "p99")}
        row |= {f"{part}_{metric}_ms": 1e3 * s for part, s in kept.items()}
    return row


def sglang_bench(r: TrafficRun) -> dict[str, Any]:
    row: dict[str, Any] = {
        "backend": "sglang", "dataset_name": "sharegpt", "request_rate": round(r.rate_per_s, 3) or float("inf"),
        "max_concurrency": r.users or None, "random_range_ratio": 0.0, **totals(r),
        "total_output_tokens_retokenized": sum(r.output), "accept_length": None,
    }  # fmt: skip
    row["server_info"] = {"model_path": MODEL, "tp_size": 1}
    for metric, name in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "itl"), ("e2el", "e2e_latency")):
        row |= {f"{part}_{name}_ms": 1e3 * s for part, s in parts(times(r)[metric]).items()}
    return row


def record_of(r: TrafficRun, i: int) -> dict[str, Any]:
    def value(amount: Any, unit: str) -> dict[str, Any]:
        return {"value": amount, "unit": unit}

    begin_ns, end_ns = (int((START_S + at) * 1e9) for at in (r.came_s[i], r.last_s[i]))
    ttft, e2e = r.first_s[i] - r.came_s[i], r.last_s[i] - r.came_s[i]
    metrics = {
        "time_to_first_token": value(1e3 * ttft, "ms"), "request_latency": value(1e3 * e2e, "ms"),
        "inter_token_latency": value(1e3 * (e2e - ttft) / max(1, r.output[i] - 1), "ms"),
        "inter_chunk_latency": value([us * 1e-3 for us in r.gap_us[i]], "ms"),
        "input_sequence_length": value(r.prompt[i], "tokens"), "output_sequence_length": value(r.output[i], "tokens"),
    }  # fmt: skip
    about = {"session_num": i, "request_start_ns": begin_ns, "request_end_ns": end_ns, "benchmark_phase": "profiling"}
    return {"metadata": about, "metrics": metrics, "error": None}


def aiperf(r: TrafficRun) -> dict[str, Any]:
    def row(values: Sequence[float], unit: str, factor: float = 1.0) -> dict[str, Any]:
        named = {"mean": "avg", "median": "p50"}
        return {"unit": unit} | {named.get(k, k): factor * v for k, v in parts(values).items()}

    took, of = totals(r), times(r)
    phases = [{"name": "profiling", "type": "concurrency", "concurrency": r.users, "requests": len(r.prompt)}]
    return {
        "schema_version": "1.4", "request_count": {"unit": "requests", "avg": float(len(r.prompt))},
        "request_throughput": {"unit": "requests/sec", "avg": took["request_throughput"]},
        "output_token_throughput": {"unit": "tokens/sec", "avg": took["output_throughput"]},
        "time_to_first_token": row(of["ttft"], "ms", 1e3), "inter_token_latency": row(of["tpot"], "ms", 1e3),
        "inter_chunk_latency": row(of["itl"], "ms", 1e3), "request_latency": row(of["e2el"], "ms", 1e3),
        "input_sequence_length": row(r.prompt, "tokens"), "output_sequence_length": row(r.output, "tokens"),
        "input_config": {"models": {"items": [{"name": MODEL}]}, "phases": phases}, "is_complete": True,
    }  # fmt: skip


def guidellm(r: TrafficRun) -> dict[str, Any]:
    def row(values: Sequence[float], factor: float = 1.0) -> dict[str, Any]:
        found = {k: factor * v for k, v in parts(values).items()}
        ends = {k: found[k] for k in ("p90", "p95", "p99")}
        summary = {"mean": found["mean"], "median": found["median"], "count": len(values), "percentiles": ends}
        return {"successful": summary}

    took, of = totals(r), times(r)
    poisson = {"type_": "poisson", "rate": round(r.rate_per_s, 3)}
    strategy = {"type_": "concurrent", "streams": r.users} if r.users else poisson
    return {
        "type_": "generative_benchmark", "config": {"strategy": strategy},
        "metrics": {
            "time_to_first_token_ms": row(of["ttft"], 1e3), "inter_token_latency_ms": row(of["tpot"], 1e3),
            "request_latency": row(of["e2el"]), "output_tokens_per_second": row([took["output_throughput"]]),
            "requests_per_second": row([took["request_throughput"]]), "prompt_token_count": row(r.prompt),
            "output_token_count": row(r.output),
        },
        "requests": {"successful": []},
    }  # fmt: skip


def inferencex(r: TrafficRun) -> dict[str, Any]:
    """Its isl and osl are the upper ends of the lengths drawn: here by the means of those recorded."""
    took = totals(r)
    row: dict[str, Any] = {
        "hw": "h200-nb", "tp": 1, "ep": 1, "dp_attention": "false", "conc": r.users, "model": MODEL,
        "framework": "vllm", "precision": "bf16", "isl": round(sum(r.prompt) / len(r.prompt) / 0.9),
        "osl": round(sum(r.output) / len(r.output) / 0.9), "is_multinode": False,
        "tput_per_gpu": took["total_token_throughput"], "output_tput_per_gpu": took["output_throughput"],
    }  # fmt: skip
    for metric in ("ttft", "tpot", "itl", "e2el"):
        row |= {
            f"{part}_{metric}": s for part, s in parts(times(r)[metric]).items() if part in ("mean", "median", "p99")
        }
    return row


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
