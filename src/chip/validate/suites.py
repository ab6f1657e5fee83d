"""Readers of published measurements, by name: the file or folder as its authors publish it, fetched by the user.

argonne: LLM-Inference-Bench of Argonne National Laboratory, Plots/All_results.csv (BSD-3-Clause).
llmservingsim: live traffic on vLLM in LLMServingSim, bench/examples (MIT); `chip.validate.published_traffic`.
silicon: systems/silicon_sample.csv of NVIDIA's aiconfigurator-core (Apache-2.0); `chip.validate.silicon`.
"""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

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
    "mistral-7b-v0.1": "mistral-7b-v0.1",
    "mixtral-8x7b-v0.1": "mixtral-8x7b",
    "qwen2-7b": "qwen2.5-7b",
    "qwen2-72b": "qwen2.5-72b",
    "bloom-7b1": "bloom-7b1",
    "gpt-j-6b": "gpt-j-6b",
    "opt-6.7b": "opt-6.7b",
    "qwen3-32b": "qwen3-32b",
    "qwen3-30b-a3b-instruct-2507": "qwen3-30b-a3b",
}
TRAFFIC, SILICON = "llmservingsim", "silicon"
ENGINES = {"vllm": "vllm"}


def model_of(hub_id: str) -> str:
    return MODELS.get(hub_id.rpartition("/")[2].lower(), "")


def read(name: str, path: Path) -> Suite:
    if name not in READERS:
        raise ChipError(f"no suite {name[:40]!r}; choose one of {', '.join(sorted((*READERS, TRAFFIC, SILICON)))}")
    check(path, SOURCES[name])
    return READERS[name](path)


def read_traffic(path: Path) -> PublishedTraffic:
    """The runs of the suite that is traffic, to be replayed by the simulator."""
    check(path, published_traffic.SOURCE)
    return published_traffic.read(path, MODELS)


def check(path: Path, source: str) -> None:
    if not path.exists():
        raise ChipError(f"{path}: no such file or folder; fetch it from {source}")


def rows_of(path: Path, columns: Sequence[str]) -> list[dict[str, str]]:
    """Rows of a CSV file, gzipped or not, that has these columns."""
    reader = csv.DictReader(io.StringIO(artifact.read_packed(path)))
    missing = [c for c in columns if c not in (reader.fieldnames or ())]
    if missing:
        raise ChipError(f"{path}: column {missing[0]!r} is missing; is it another file?")
    return list(reader)


def number_of(path: Path, line: int, row: Mapping[str, str], column: str) -> float:
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
    for line, row in enumerate(rows_of(path, columns), 2):
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
                int(number_of(path, line, row, c)) for c in ("Input Output Length", "Batch Size", "Num of Hardware")
            )
            key = (gpu, engine, model, Scenario(batch, length, length, "bf16", tp))
            same[key].append(number_of(path, line, row, "Latency"))
    runs = [Published(g, e, ARGONNE_VERSION, m, s, "e2e", stats.median(times)) for (g, e, m, s), times in same.items()]
    caution = (
        "software of 2024; versions are not stated, their scripts run on vLLM 0.5.4 to 0.6.1; one end-to-end time a "
        "point, prompt and output of equal length"
    )
    return Suite("argonne", SOURCES["argonne"], "BSD-3-Clause", caution, tuple(runs), _counted(left))


READERS: dict[str, Callable[[Path], Suite]] = {"argonne": argonne}
SOURCES = {
    "argonne": "https://github.com/argonne-lcf/LLM-Inference-Bench, Plots/All_results.csv",
}
