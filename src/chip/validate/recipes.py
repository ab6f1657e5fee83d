"""How the engines of published runs were started: their settings by model and GPU, from the benchmarks' own scripts.

InferenceX: SemiAnalysisAI/InferenceX (Apache-2.0), benchmarks/single_node/*.sh as they stood when rows were measured
(October 2025 to April 2026; those of Llama-3.1-70B were removed on 2025-10-29), RANDOM_RANGE_RATIO of
.github/workflows/benchmark-tmpl.yml, and .github/configs/nvidia-master.yaml for what ran with attention of its own on
each GPU. Where nothing is known of a run its engine's defaults stand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from chip.validate.silicon import INFERENCEX, SiliconRow, Split

SHORTEST = 0.8  # of the named lengths, drawn evenly up to the whole (RANDOM_RANGE_RATIO)
ROUNDS = 10  # requests of each user
HOPPER = ("h100", "h200")
# Configurations of vLLM that ran with `dp-attn: true`; the file has the same columns for those without
DP_ATTENTION = ("707", "727", "827")
NEW_MINIMAX = "2026-04-03"  # on B200: other settings from then on (#947)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a run was started with. `settings` are the engine's own, `kv_dtype` is auto where nothing was said."""

    settings: tuple[tuple[str, Any], ...] = ()
    kv_dtype: str = "auto"
    stream_interval: int = 1  # tokens that the server sends at once
    shortest: float = 1.0  # share of the named lengths that the shortest requests have


def recipe(row: SiliconRow) -> Recipe:
    if row.engine == "vllm":
        settings, kv, interval = _vllm(row)
        settings = {"enable_prefix_caching": False, **settings}
    else:
        settings, kv, interval = {}, "auto", 1
    return Recipe(tuple(sorted(settings.items())), kv, interval, SHORTEST)


def _vllm(row: SiliconRow) -> tuple[dict[str, Any], str, int]:
    if row.benchmark != INFERENCEX:
        return {}, "auto", 1
    users, hopper = {"max_num_seqs": row.users}, row.gpu in HOPPER
    budget = {"max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.9}
    if row.model == "llama-3.1-70b":
        return budget | (users if hopper else {"max_num_seqs": 512}), "fp8", 1
    if row.model == "gpt-oss-120b":
        return budget | (users if hopper else {"max_num_seqs": 512}), "auto" if hopper else "fp8", 1
    if row.model == "kimi-k2":
        return {"gpu_memory_utilization": 0.95 if row.precision == "int4" else 0.9, **users}, "auto", 1
    if row.model == "minimax-m2":
        if row.gpu == "h100":
            return {"gpu_memory_utilization": 0.9, "max_num_seqs": 256}, "auto", 1
        if row.gpu == "h200" or row.measured < NEW_MINIMAX:
            return {"gpu_memory_utilization": 0.95}, "auto", 1
        return {"gpu_memory_utilization": 0.9, "max_num_batched_tokens": 2 * row.prompt}, "fp8", 20
    return {}, "auto", 1


def split_as_run(row: SiliconRow) -> Split:
    """The GPUs of a row, where its columns do not tell all."""
    split = row.split
    if row.engine == "vllm" and row.config in DP_ATTENTION:
        return replace(split, tp=1)
    return split
