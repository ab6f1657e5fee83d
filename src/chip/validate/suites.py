"""Readers of published measurements, by name: the file or folder as its authors publish it, fetched by the user.

argonne: LLM-Inference-Bench of Argonne National Laboratory, Plots/All_results.csv (BSD-3-Clause).
llmservingsim: live traffic on vLLM in LLMServingSim, bench/examples (MIT); `chip.validate.published_traffic`.
silicon: systems/silicon_sample.csv of NVIDIA's aiconfigurator-core (Apache-2.0).
"""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from chip import stats
from chip.files import artifact
from chip.types import ChipError, Scenario
from chip.validate import published_traffic
from chip.validate.public import LeftOut, Published, Suite
from chip.validate.published_traffic import PublishedTraffic

# Hub ids by bundled models of the same shape. Llama-3 and Qwen2 have those of Llama-3.1 and Qwen2.5.
MODELS = {
    "llama-2-7b-hf": "llama-2-7b",
    "llama-7b": "llama-2-7b",
    "llama-2-70b-hf": "llama-2-70b",
    "meta-llama-3-8b": "llama-3.1-8b",
    "meta-llama-3-70b": "llama-3.1-70b",
    "llama-3.1-8b": "llama-3.1-8b",
    "llama-3.1-8b-instruct": "llama-3.1-8b",
    "llama-3.1-8b-instruct-fp8": "llama-3.1-8b",
    "llama-3.1-70b": "llama-3.1-70b",
    "mistral-7b-v0.1": "mistral-7b-v0.1",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "qwen2-7b": "qwen2.5-7b",
    "qwen2-72b": "qwen2.5-72b",
    "bloom-7b1": "bloom-7b1",
    "gpt-j-6b": "gpt-j-6b",
    "opt-6.7b": "opt-6.7b",
    "qwen3-32b": "qwen3-32b",
    "qwen3-30b-a3b-instruct-2507": "qwen3-30b-a3b",
    "qwen3-235b-a22b-fp8": "qwen3-235b-a22b",
    "deepseek-v3": "deepseek-v3",
    "deepseek-r1": "deepseek-v3",
    "gpt-oss-120b": "gpt-oss-120b",
}
TRAFFIC = "llmservingsim"
ENGINES = {"vllm": "vllm"}


def model_of(hub_id: str) -> str:
    return MODELS.get(hub_id.rpartition("/")[2].lower(), "")


def read(name: str, path: Path) -> Suite:
    if name not in READERS:
        raise ChipError(f"no suite {name[:40]!r}; choose one of {', '.join(sorted((*READERS, TRAFFIC)))}")
    _check(path, SOURCES[name])
    return READERS[name](path)


def read_traffic(path: Path) -> PublishedTraffic:
    """The runs of the suite that is traffic, to be replayed by the simulator."""
    _check(path, published_traffic.SOURCE)
    return published_traffic.read(path, MODELS)


def _check(path: Path, source: str) -> None:
    if not path.exists():
        raise ChipError(f"{path}: no such file or folder; fetch it from {source}")


def _rows(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Rows of a CSV file, gzipped or not, that has these columns."""
    reader = csv.DictReader(io.StringIO(artifact.read_packed(path)))
    missing = [c for c in columns if c not in (reader.fieldnames or ())]
    if missing:
        raise ChipError(f"{path}: column {missing[0]!r} is missing; is it another file?")
    return list(reader)


def _number(path: Path, line: int, row: Mapping[str, str], column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        value = 0.0
    if not 0 < value < 1e12:
        raise ChipError(f"{path}: line {line}: {column} must be a positive number, got {row[column][:40]!r}")
    return value


def _counted(reasons: Counter[str]) -> tuple[LeftOut, ...]:
    return tuple(LeftOut(n, why) for why, n in reasons.most_common())


# -- Argonne
# Their scripts take what vLLM 0.5.4 to 0.6.1 has (PromptInputs, use_beam_search), their requirements name
# vllm-flash-attn 2.6.1, of 0.5.4 to 0.6.1.
ARGONNE_VERSION = "0.6"
ARGONNE_GPUS = {
    # by their rates: Llama-2-7B at batch 1 reads its weights at 0.99 TB/s, half of what the 80 GB card has
    "Nvidia A100 GPU": "a100-40gb",
    "Nvidia H100 GPU": "h100",
    "Nvidia GH200 GPU": "gh200",
    "AMD MI250 GPU": "mi250x",
    "AMD MI300X GPU": "mi300x",
}


def argonne(path: Path) -> Suite:
    columns = ("Hardware", "Num of Hardware", "Framework", "Model", "Input Output Length", "Batch Size", "Latency")
    same: dict[tuple[str, str, str, Scenario], list[float]] = defaultdict(list)
    left = Counter[str]()
    for line, row in enumerate(_rows(path, columns), 2):
        gpu, model = ARGONNE_GPUS.get(row["Hardware"], ""), model_of(row["Model"])
        engine = ENGINES.get(row["Framework"].lower(), "")
        if not engine:
            left[f"engine {row['Framework']} is not predicted"] += 1
        elif not gpu:
            left[f"GPU {row['Hardware']} is not known"] += 1
        elif not model:
            left[f"model {row['Model']} is not known"] += 1
        else:
            length, batch, tp = (
                int(_number(path, line, row, c)) for c in ("Input Output Length", "Batch Size", "Num of Hardware")
            )
            key = (gpu, engine, model, Scenario(batch, length, length, "bf16", tp))
            same[key].append(_number(path, line, row, "Latency"))
    runs = [Published(g, e, ARGONNE_VERSION, m, s, "e2e", stats.median(times)) for (g, e, m, s), times in same.items()]
    caution = (
        "software of 2024; versions are not stated, their scripts run on vLLM 0.5.4 to 0.6.1; one end-to-end time a "
        "point, prompt and output of equal length"
    )
    return Suite("argonne", SOURCES["argonne"], "BSD-3-Clause", caution, tuple(runs), _counted(left))


# -- aiconfigurator's silicon sample
SILICON_GPUS = {"h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "gb200": "gb200"}
SILICON_DTYPES = {"": "bf16", "bf16": "bf16", "fp8": "fp8"}


def silicon(path: Path) -> Suite:
    columns = (
        "backend", "backend_version", "model_path", "system", "precision", "mode", "isl", "osl", "batch_size",
        "tp_size", "pp_size", "attention_dp_size", "moe_ep_size", "silicon_tpot_ms",
    )  # fmt: skip
    runs: list[Published] = []
    left = Counter[str]()
    for line, row in enumerate(_rows(path, columns), 2):
        why = _not_silicon(row)
        if why:
            left[why] += 1
            continue
        batch, prompt, output, tp = (int(_number(path, line, row, c)) for c in ("batch_size", "isl", "osl", "tp_size"))
        scenario = Scenario(batch, prompt, output, SILICON_DTYPES[row["precision"]], tp)
        gpu, model = SILICON_GPUS[row["system"]], model_of(row["model_path"])
        seconds = _number(path, line, row, "silicon_tpot_ms") * 1e-3
        runs.append(Published(gpu, "vllm", row["backend_version"], model, scenario, "tpot", seconds))
    caution = (
        "live traffic at a fixed concurrency, predicted as one batch of that size: prefills in between are not in it"
    )
    return Suite("silicon", SOURCES["silicon"], "Apache-2.0", caution, tuple(runs), _counted(left))


def _not_silicon(row: Mapping[str, Any]) -> str:
    """Why a row cannot be predicted today, or ""."""
    if row["backend"] not in ENGINES:
        return f"engine {row['backend']} is not predicted"
    if row["mode"] != "agg":
        return "prefill and decode on GPUs of their own"
    if row["system"] not in SILICON_GPUS:
        return f"GPU {row['system']} is not known"
    if not model_of(row["model_path"]):
        return f"model {row['model_path']} is not known"
    if row["precision"] not in SILICON_DTYPES:
        return f"precision {row['precision']} is not predicted"
    spread = (row["pp_size"], row["attention_dp_size"], row["moe_ep_size"])
    return "" if set(spread) <= {"", "1"} else "pipeline, data or expert parallelism"


READERS: dict[str, Callable[[Path], Suite]] = {"argonne": argonne, "silicon": silicon}
SOURCES = {
    "argonne": "https://github.com/argonne-lcf/LLM-Inference-Bench, Plots/All_results.csv",
    "silicon": "the wheel of aiconfigurator-core 0.12.0, systems/silicon_sample.csv",
}
