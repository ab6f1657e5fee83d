"""`python -m sglang.bench_serving`: a document a line, with `--output-details` also single requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chip.validate.client_result import ClientResult, figures_of, from_totals, number, numbers, whole, workload_of
from chip.validate.clients.vllm_bench import rate_of

NAME = "sglang.bench_serving"
HAS = ("total_output_tokens_retokenized", "median_e2e_latency_ms", "backend")
METRIC_NAMES = {"e2el": "e2e_latency"}


def results(rows: Sequence[Any], path: Path) -> list[ClientResult] | None:
    if not all(isinstance(row, dict) and all(key in row for key in HAS) for row in rows):
        return None
    return [_result(row, path) for row in rows if row.get("completed")]


def _result(row: Mapping[str, Any], path: Path) -> ClientResult:
    rate = rate_of(row, path)
    users = 0 if rate else whole(row, "max_concurrency", str(path), 0)
    completed = whole(row, "completed", str(path), least=1)
    notes: tuple[str, ...] = ()
    if row.get("input_lens") and row.get("output_lens"):
        columns = [numbers(row[key], f"{path}: {key}") for key in ("input_lens", "output_lens")]
        answered = [(int(p), int(o)) for p, o in zip(*columns) if o]
        w = workload_of(NAME, *([pair[i] for pair in answered] for i in (0, 1)), rate=rate, users=users)
    else:
        totals = [
            number(row.get(key), f"{path}: {key}") / completed for key in ("total_input_tokens", "total_output_tokens")
        ]
        random_lengths = str(row.get("dataset_name", "")).startswith("random")
        ratio = row.get("random_range_ratio") if random_lengths else None
        share = None if ratio is None or ratio == 1 else (number(ratio, f"{path}: random_range_ratio"), 1.0)
        w, notes = from_totals(NAME, completed, *totals, rate=rate, users=users, share=share)
    info = row.get("server_info")
    info = info if isinstance(info, dict) else {}
    return ClientResult(
        NAME, path, str(info.get("model_path") or ""), w, figures_of(row, str(path), METRIC_NAMES),
        tp=whole(info, "tp_size", str(path), 1), server=str(row["backend"]), notes=notes,
    )  # fmt: skip
