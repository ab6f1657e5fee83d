"""The same published rows asked of another predictor, as its own authors ask it.

aiconfigurator (NVIDIA, Apache-2.0): by the rules of its repository's tools/accuracy_regression_testing: every column as
it stands, static answers of `cli_estimate`, and where it has no tables of a row's version those of its newest.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from chip.types import ChipError
from chip.validate.silicon import SiliconRow

NAME, VERSION = "aiconfigurator", "0.12.0"
PARALLEL = ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
SHARED = ("batch_size", *PARALLEL)
APART = tuple(f"{part}_{c}" for part in ("prefill", "decode") for c in (*PARALLEL, "batch_size", "num_workers"))
NEEDED = ("prefill_batch_size", "prefill_num_workers", "decode_batch_size", "decode_num_workers")


def ask(name: str, rows: Sequence[SiliconRow]) -> dict[str, Any]:
    """Its answers in seconds, (TTFT, TPOT) by row."""
    if name != NAME:
        raise ChipError(f"--against {name[:40]!r}: must be {NAME}")
    try:
        estimate = importlib.import_module("aiconfigurator.cli.api").cli_estimate
        version = importlib.metadata.version(NAME)
    except ImportError as e:
        raise ChipError(f"--against {NAME}: {e.name} is not installed: pip install {NAME}=={VERSION}") from None
    logging.disable(logging.CRITICAL)
    known: dict[tuple[Any, ...], tuple[float, float] | None] = {}
    answers: dict[str, tuple[float, float]] = {}
    for row in rows:
        question = question_of(row.columns)
        key = tuple(question.items())
        if key not in known:
            known[key] = _answer(estimate, question)
        if found := known[key]:
            answers[row.id] = found
    logging.disable(logging.NOTSET)
    return {"who": f"{NAME} {version}", "rows": len(rows), "answers": answers}


def question_of(columns: Mapping[str, str]) -> dict[str, Any]:
    shared = columns["mode"] == "agg"
    fixed = {
        "model_path": columns["model_path"], "system_name": columns["system"], "mode": columns["mode"],
        "backend_name": columns["backend"], "backend_version": columns["backend_version"] or None,
        "isl": int(columns["isl"]), "osl": int(columns["osl"]), "gemm_quant_mode": columns["gemm_quant_mode"] or None,
        "moe_quant_mode": columns["moe_quant_mode"] or None,
    }  # fmt: skip
    return fixed | {c: int(columns[c]) for c in (SHARED if shared else APART) if columns.get(c)}


def _answer(estimate: Callable[..., Any], question: dict[str, Any]) -> tuple[float, float] | None:
    """None where it has no answer, whatever its reason."""
    if question["mode"] == "disagg" and any(question.get(c) is None for c in NEEDED):
        return None
    for version in dict.fromkeys((question["backend_version"], None)):
        with contextlib.suppress(Exception):  # of another project's code: anything
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                found = estimate(**{**question, "backend_version": version})
            return found.ttft * 1e-3, found.tpot * 1e-3
    return None
