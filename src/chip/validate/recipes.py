"""How the engines of published runs were started: their settings by model and GPU, from the benchmarks' own scripts.

InferenceX: SemiAnalysisAI/InferenceX (Apache-2.0), benchmarks/single_node/*.sh as they stood when rows were measured
(October 2025 to April 2026; those of Llama-3.1-70B were removed on 2025-10-29), RANDOM_RANGE_RATIO of
.github/workflows/benchmark-tmpl.yml, and .github/configs/nvidia-master.yaml for what ran with attention of its own on
each GPU. Where nothing is known of a run its engine's defaults stand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from chip.validate.silicon import INFERENCEX, SiliconRow, Split

SHORTEST = 0.8  # of the named lengths, drawn evenly up to the whole (RANDOM_RANGE_RATIO)
ROUNDS = 10  # requests of each user
HOPPER, BLACKWELL = ("h100", "h200"), ("b200", "b300")
# Configurations of vLLM that ran with `dp-attn: true`; the file has the same columns for those without
DP_ATTENTION = ("707", "727", "827")
NEW_MINIMAX = "2026-04-03"  # on B200: other settings from then on (#947)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a run was started with. `settings` are the engine's own, `kv_dtype` is auto where nothing was said."""

    settings: tuple[tuple[str, Any], ...] = ()
    kv_dtype: str = "auto"
    shortest: float = 1.0  # share of the named lengths that the shortest requests have


def recipe(row: SiliconRow) -> Recipe:
    settings, kv = STARTED[row.engine](row) if row.engine in STARTED else ({}, "auto")
    return Recipe(tuple(sorted(settings.items())), kv, SHORTEST)


def _vllm(row: SiliconRow) -> tuple[dict[str, Any], str]:
    """Prompts are all different: prefix caching was off wherever it was said."""
    settings, kv = _vllm_of(row) if row.benchmark == INFERENCEX else ({"async_scheduling": False}, "auto")
    return {"enable_prefix_caching": False, **settings}, kv


def _vllm_of(row: SiliconRow) -> tuple[dict[str, Any], str]:
    users, hopper = {"max_num_seqs": row.users}, row.gpu in HOPPER
    budget = {"max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.9}
    if row.model == "llama-3.1-70b":
        return budget | (users if hopper else {"max_num_seqs": 512}), "fp8"
    graphs = {"max_cudagraph_capture_size": 2048}
    if row.model == "gpt-oss-120b":
        return budget | graphs | (users if hopper else {"max_num_seqs": 512}), "auto" if hopper else "fp8"
    if row.model == "kimi-k2":
        return {"gpu_memory_utilization": 0.95 if row.precision == "int4" else 0.9, **users}, "auto"
    if row.model == "minimax-m2":
        if row.gpu == "h100":
            return {"gpu_memory_utilization": 0.9, "max_num_seqs": 256}, "auto"
        if row.gpu == "h200" or row.measured < NEW_MINIMAX:
            return {"gpu_memory_utilization": 0.95}, "auto"
        return graphs | {"gpu_memory_utilization": 0.9, "max_num_batched_tokens": 2 * row.prompt}, "fp8"
    return {}, "auto"


def version(row: SiliconRow) -> str:
    """Of the engine. Rows of October 2025 do not say theirs: vLLM was 0.11; its scripts for B200 switched on the fusion
    of all-reduce and norm, which is the default today."""
    unsaid = row.engine == "vllm" and not row.version and row.gpu in HOPPER
    return "0.11" if unsaid else row.version


def _sglang(row: SiliconRow) -> tuple[dict[str, Any], str]:
    settings: dict[str, Any] = {"disable_radix_cache": True}
    if row.benchmark != INFERENCEX:
        return settings, "auto"
    most, chunk, share = 128, 32768, 0.82
    if row.model == "deepseek-v3" and row.gpu == "h200":
        return settings | _pool(512 if row.prompt == row.output == 1024 else 256, chunk, share), "auto"
    if row.model == "deepseek-v3" and row.precision == "fp4":
        most, chunk, share = 256, 16384, 0.85
    elif row.model == "deepseek-v3" and row.split.tp == 4:
        most, chunk, share = 32, 8192, 0.95
    elif row.model == "glm-5":
        most, share = row.users, 0.85
    elif row.gpu == "h200":
        chunk, share = 16384, 0.8
    if row.gpu in BLACKWELL and row.model != "glm-5":
        settings["scheduler_recv_interval"] = 30 if row.users >= 16 else 10
    return settings | _pool(max(most, row.users), chunk, share), "auto" if row.precision == "bf16" else "fp8"


def _pool(requests: int, chunk: int, share: float) -> dict[str, Any]:
    return {"max_running_requests": requests, "chunked_prefill_size": chunk, "mem_fraction_static": share}


def _trtllm(row: SiliconRow) -> tuple[dict[str, Any], str]:
    settings: dict[str, Any] = {"enable_block_reuse": False}
    if row.benchmark != INFERENCEX:
        return settings, "auto"
    if row.model == "llama-3.1-70b":
        return settings | {"max_num_tokens": 16384}, "fp8"
    if row.model == "gpt-oss-120b":
        return settings | {"max_num_tokens": 20000, "free_gpu_memory_fraction": 0.85, "max_batch_size": 512}, "fp8"
    tokens, share = -(-(row.users + row.prompt + 64) // 64) * 64, 0.75 if row.gpu in HOPPER else 0.8
    return settings | {"max_num_tokens": max(8192, tokens), "free_gpu_memory_fraction": share}, "fp8"


Started = Callable[[SiliconRow], tuple[dict[str, Any], str]]
STARTED: dict[str, Started] = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}


def split_as_run(row: SiliconRow) -> Split:
    """The GPUs of a row, where its columns do not tell all."""
    split = row.split
    if row.engine == "vllm" and row.config in DP_ATTENTION:
        return replace(split, tp=1)
    if (row.model, row.precision, split.tp) == ("minimax-m2", "fp8", 8):
        return replace(
            split, ep=8
        )  # vLLM refuses to cut the experts' scales over 8 (Fp8MoEMethod): whole ones stand in
    return split
