"""`vllm bench serve --save-result`, with or without `--save-detailed`; with `--append-result` a document a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chip.types import ChipError
from chip.validate.client_result import ClientResult, figures_of, from_totals, number, numbers, whole, workload_of

NAME = "vllm bench serve"
HAS = ("total_token_throughput", "num_prompts", "endpoint_type")
UNLIMITED = ("inf", float("inf"), None)  # a rate that is none


def rate_of(row: Mapping[str, Any], path: Path) -> float:
    """Requests a second, 0 where they were sent as fast as may be."""
    rate = row.get("request_rate")
    return 0.0 if rate in UNLIMITED else number(rate, f"{path}: request_rate", 1e-9)


def results(rows: Sequence[Any], path: Path) -> list[ClientResult] | None:
    if not all(isinstance(row, dict) and all(key in row for key in HAS) for row in rows):
        return None
    return [_result(row, path) for row in rows if row.get("completed")]


def _result(row: Mapping[str, Any], path: Path) -> ClientResult:
    rate = rate_of(row, path)
    users = 0 if rate else whole(row, "max_concurrency", str(path), 0)
    burstiness = number(row.get("burstiness") or 1.0, f"{path}: burstiness", 1e-3)
    completed = whole(row, "completed", str(path), least=1)
    notes: tuple[str, ...] = ()
    if row.get("input_lens") and row.get("output_lens"):
        prompt, output = (numbers(row[key], f"{path}: {key}") for key in ("input_lens", "output_lens"))
        starts = numbers(row.get("start_times") or [], f"{path}: start_times")
        if len(prompt) != len(output) or (starts and len(starts) != len(prompt)):
            raise ChipError(f"{path}: input_lens, output_lens and start_times must be of one length")
        kept = [i for i, tokens in enumerate(output) if tokens]  # one that failed has none
        lengths = [[int(values[i]) for i in kept] for values in (prompt, output)]
        arrival_s = [starts[i] for i in kept] if starts and not users else ()
        w = workload_of(
            NAME, *lengths, rate=rate, users=users, burstiness=burstiness, arrival_s=arrival_s
        )  # fmt: skip
    else:
        totals = [
            number(row.get(key), f"{path}: {key}") / completed for key in ("total_input_tokens", "total_output_tokens")
        ]
        w, notes = from_totals(NAME, completed, *totals, rate=rate, users=users, burstiness=burstiness)
    if failed := whole(row, "failed", str(path), 0):
        notes = (*notes, f"{failed} requests failed and are left out")
    model = str(row.get("model_id") or "")
    return ClientResult(NAME, path, model, w, figures_of(row, str(path)), notes=notes)
