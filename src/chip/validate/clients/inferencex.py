"""InferenceX (once InferenceMAX): rows of one point each, in seconds, throughput for each GPU.

Its client draws lengths between 0.8 and 1 of what is asked for and sends ten requests for each user of a closed loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chip.types import ChipError
from chip.validate.client_result import METRICS, PARTS, ClientResult, from_totals, number, whole

NAME = "InferenceX"
HAS = ("hw", "model", "conc", "tput_per_gpu", "framework", "precision")
SHARE = (0.8, 1.0)
PLAIN = ("none", "off", "false")  # what a row says where nothing is drafted
REQUESTS_A_USER = 10
DTYPES = {"fp4": "nvfp4", "fp8": "fp8", "bf16": "bf16", "fp16": "fp16", "int4": "int4"}


def results(rows: Sequence[Any], path: Path) -> list[ClientResult] | None:
    flat = rows[0] if len(rows) == 1 and isinstance(rows[0], list) else rows
    if not flat or not all(isinstance(row, dict) and all(key in row for key in HAS) for row in flat):
        return None
    one_node = [row for row in flat if not (row.get("is_multinode") or row.get("disagg"))]
    if not one_node:
        raise ChipError(f"{path}: all rows are of several nodes, whose prefill and decode are not simulated apart")
    return [_result(row, f"{path}: {row['model']}, {row['conc']} users", path) for row in one_node]


def _result(row: Mapping[str, Any], where: str, path: Path) -> ClientResult:
    figures = {}
    for metric in METRICS:
        for part in PARTS:
            value = row.get(f"{part}_{metric}")
            if value is not None:
                figures[f"{part}_{metric}_ms"] = number(value, f"{where}: {part}_{metric}") * 1e3
    tp = whole(row, "tp", where, 1)
    if row.get("output_tput_per_gpu") is not None:
        figures["output_throughput"] = number(row["output_tput_per_gpu"], f"{where}: output_tput_per_gpu") * tp
    if not figures:
        raise ChipError(f"{where}: has no figure that can be compared")
    if not row.get("isl") or not row.get("osl"):
        raise ChipError(f"{where}: isl and osl are missing: the row does not say how long prompts and answers were")
    users = whole(row, "conc", where, least=1)
    middle = sum(SHARE) / 2
    lengths = [number(row[key], f"{where}: {key}", 1) * middle for key in ("isl", "osl")]
    w, notes = from_totals(
        NAME, users * REQUESTS_A_USER, *lengths, rate=0.0, users=users, share=SHARE
    )  # fmt: skip
    if str(row.get("mtp") or row.get("spec_decoding") or "none").lower() not in PLAIN:
        notes = (*notes, "measured with speculative decoding, which is not simulated")
    precision = str(row["precision"]).lower()
    return ClientResult(
        NAME, path, str(row.get("model") or ""), w, figures, gpu=str(row["hw"]).split("-")[0], tp=tp,
        ep=whole(row, "ep", where, 1), dtype=DTYPES.get(precision, precision), server=str(row["framework"]),
        notes=(*notes, "lengths are drawn between 0.8 and 1 of isl and osl, as its client does"),
    )  # fmt: skip
