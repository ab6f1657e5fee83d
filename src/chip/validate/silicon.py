"""The rows of aiconfigurator's silicon sample: what was deployed, the traffic it served, and what was measured.

Each row is one number of a benchmark: TTFT and TPOT at so many users who wait for their answers. Most come from
InferenceX (SemiAnalysis), some from NVIDIA's own runs. Columns of the file are read by what the benchmark's own labels
mean; docs/field.md has the rules and why they are needed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chip.hardware.tables.aiconfigurator import GPUS, Package, find
from chip.types import ChipError
from chip.validate.suites import check, number_of, rows_of

FILE = "silicon_sample.csv"
SOURCE = "aiconfigurator-core 0.12.0, systems/silicon_sample.csv"
LICENCE = "Apache-2.0"
COLUMNS = (
    "id", "silicon_data_source", "backend", "backend_version", "model_path", "system", "precision", "mode", "isl",
    "osl", "batch_size", "tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "silicon_ttft_ms",
    "silicon_tpot_ms",
)  # fmt: skip
MODELS = {
    "deepseek-ai/DeepSeek-R1": "deepseek-v3",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-v3",
    "nvidia/DeepSeek-V3.1-NVFP4": "deepseek-v3",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
    "moonshotai/Kimi-K2.5": "kimi-k2",
    "openai/gpt-oss-120b": "gpt-oss-120b",
    "meta-llama/Llama-3.1-70B": "llama-3.1-70b",
    "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "llama-3.1-8b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "nvidia/Qwen3-32B-NVFP4": "qwen3-32b",
    "Qwen/Qwen3-235B-A22B-FP8": "qwen3-235b-a22b",
    "Qwen/Qwen3.5-397B-A17B": "qwen3.5-397b-a17b",
    "zhipuai/GLM-5": "glm-5",
}
SYSTEMS = {**GPUS, "b300_sxm": "b300", "gb300": "gb300"}
INFERENCEX, OTHER = "InferenceX", "NVIDIA"


@dataclass(frozen=True, slots=True)
class Split:
    """GPUs of one worker, by what is divided."""

    tp: int = 1  # that share each layer's attention
    pp: int = 1
    ep: int = 1  # that the experts lie on
    workers: int = 1

    @property
    def gpus(self) -> int:
        return max(self.tp, self.ep) * self.pp * self.workers


@dataclass(frozen=True, slots=True)
class SiliconRow:
    """One published measurement, in SI units. `prefill` is None where prompts and decodes share their GPUs."""

    id: str
    benchmark: str
    engine: str
    version: str
    hub_id: str
    gpu: str
    precision: str
    prompt: int
    output: int
    users: int
    split: Split
    prefill: Split | None
    measured: str  # the day
    config: str  # number of the benchmark's configuration; "" where it has none
    ttft_s: float
    tpot_s: float
    columns: Mapping[str, str]  # of the file, for other predictors

    @property
    def model(self) -> str:
        return MODELS.get(self.hub_id, "")

    @property
    def deployment(self) -> tuple[Any, ...]:
        """What is the same for all traffic that one deployment served."""
        return (self.engine, self.version, self.model, self.gpu, self.precision, self.split, self.prefill)


def read(path: Path) -> list[SiliconRow]:
    """The rows of the CSV file, or of the wheel or folder of the package that holds it."""
    check(path, SOURCE)
    if path.is_dir() or path.suffix == ".whl":
        path = packed(find(str(path)))
    return [_row(path, line, row) for line, row in enumerate(rows_of(path, COLUMNS), 2)]


def packed(package: Package) -> Path:
    """The CSV file of an unpacked package."""
    if not isinstance(package.systems, Path):
        raise ChipError(f"{package.where}: unpack the wheel (python -m zipfile -e) and give {FILE}")
    return package.systems / FILE


def _row(path: Path, line: int, row: Mapping[str, str]) -> SiliconRow:
    source, disaggregated = row["silicon_data_source"], row["mode"] == "disagg"
    benchmark = OTHER if "source_file=/" in source or "gtl_" in source else INFERENCEX
    users = _part(source, r"silicon_concurrency=(\d+)") or row["batch_size"] or "0"
    return SiliconRow(
        id=row["id"],
        benchmark=benchmark,
        engine=row["backend"],
        version=row["backend_version"],
        hub_id=row["model_path"],
        gpu=SYSTEMS.get(row["system"], row["system"]),
        precision=row["precision"] or "bf16",
        prompt=int(number_of(path, line, row, "isl")),
        output=int(number_of(path, line, row, "osl")),
        users=int(users),
        split=_worker(row, "decode_") if disaggregated else _shared(row, benchmark),
        prefill=_worker(row, "prefill_") if disaggregated else None,
        measured=_part(source, r"measured=(\d{4}-\d\d-\d\d)"),
        config=_part(source, r"config_id=(\d+)"),
        ttft_s=number_of(path, line, row, "silicon_ttft_ms") * 1e-3,
        tpot_s=number_of(path, line, row, "silicon_tpot_ms") * 1e-3,
        columns=row,
    )


def _part(text: str, pattern: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


def _count(row: Mapping[str, str], column: str) -> int:
    return int(float(row.get(column) or 0))


def _shared(row: Mapping[str, str], benchmark: str) -> Split:
    """Of GPUs that serve prompts and decodes. InferenceX labels a run by the GPUs of the engine (`tp`) and by how many
    of them hold a set of experts (`ep`). Where both are above 1 the file multiplies them: 16 or 64 GPUs for 4 or 8."""
    tp, dp, moe_tp, ep, pp = (
        max(1, _count(row, c)) for c in ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size", "pp_size")
    )
    if benchmark != INFERENCEX:  # where the file leaves out the replicas of the attention, the experts' GPUs tell them
        gpus = tp * max(dp, moe_tp * ep // tp)
        return Split(tp, pp, gpus if gpus > tp or ep > 1 else 1)
    gpus = moe_tp if moe_tp > 1 and ep > 1 else tp if tp == dp else tp * dp
    if dp > 1 and row["backend"] != "vllm":  # each GPU attends to requests of its own
        return Split(1, pp, gpus)
    return Split(gpus, pp, gpus if ep > 1 else 1)


def _worker(row: Mapping[str, str], part: str) -> Split:
    """Of the workers that do prompts alone, or decodes alone."""
    tp, dp, ep = (max(1, _count(row, part + c)) for c in ("tp_size", "attention_dp_size", "moe_ep_size"))
    pp, workers = max(1, _count(row, f"{part}pp_size")), _count(row, f"{part}num_workers")
    return Split(tp, pp, tp * dp if dp > 1 or ep > 1 else 1, workers)
