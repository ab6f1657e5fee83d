"""Live traffic that others served and published, to be replayed by the simulator: LLMServingSim, bench/examples (MIT).

A folder holds `<GPU>/<model>/[vllm/]requests.jsonl` and a meta.json beside it, with the settings of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chip.files import artifact
from chip.simulator.recorded import TrafficRun
from chip.types import ChipError
from chip.validate.public import LeftOut

# By folder. The profiles beside the RTX PRO runs name the card (profiler/perf/RTXPRO6000/*/*/bf16/meta.yaml).
GPUS = {"RTXPRO6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX4090": "NVIDIA GeForce RTX 4090"}
SETTINGS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
SOURCE = "https://github.com/casys-kaist/LLMServingSim, bench/examples"
TARGETS = {"tpot_ms.mean": 0.12}
CAUTION = (
    "300 ShareGPT requests at 10 a second each, an engine of another version on a host and links that nobody "
    "measured; all are saturated, so that an error of the step time shows in full"
)


@dataclass(frozen=True, slots=True)
class PublishedTraffic:
    runs: tuple[TrafficRun, ...]
    left_out: tuple[LeftOut, ...] = ()


def read(path: Path, models: Mapping[str, str]) -> PublishedTraffic:
    """`models`: bundled models by hub ids without their owner, in small letters."""
    files = sorted(path.rglob("requests.jsonl")) if path.is_dir() else [path]
    if not files:
        raise ChipError(f"{path}: the folder holds no requests.jsonl")
    runs, left = [], []
    for file in files:
        meta = _meta(file.with_name("meta.json"))
        hub_id = str(meta.get("model", ""))
        model = models.get(hub_id.rpartition("/")[2].lower(), "")
        device = next((GPUS[part] for part in file.parts[::-1] if part in GPUS), "")
        if model and device:
            runs.append(_run(file, meta, model, device))
        else:
            unknown = f"model {hub_id[:80]}" if device else f"the GPU of {file.parent}"
            left.append(LeftOut(len(artifact.read_lines(file)), f"{unknown} is not known"))
    return PublishedTraffic(tuple(runs), tuple(left))


def _meta(path: Path) -> dict[str, Any]:
    meta = artifact.read_json(path)
    if not isinstance(meta, dict) or not isinstance(meta.get("engine_kwargs"), dict):
        raise ChipError(f"{path}: engine_kwargs is missing")
    return meta


def _run(file: Path, meta: Mapping[str, Any], model: str, device: str) -> TrafficRun:
    """Times from when the first request was queued. A request is planned by the wall clock (`arrival_time`) and queued
    when the engine next looks (`queued_ts`, by another clock): the least difference is that of the clocks."""
    rows = []
    for number, row in enumerate(artifact.read_lines(file), 1):
        try:
            times = [float(row[k]) for k in ("arrival_time", "queued_ts", "first_token_ts", "last_token_ts")]
            rows.append((times, int(row["input_toks"]), int(row["output_toks"])))
        except (TypeError, KeyError, ValueError):
            raise ChipError(f"{file}: line {number} is no request of LLMServingSim's bench") from None
    if not rows:
        raise ChipError(f"{file}: holds no request")
    rows.sort(key=lambda r: r[0][0])
    start_s = rows[0][0][0]
    clock_s = min(queued - arrival for (arrival, queued, _, _), _, _ in rows) + start_s
    arrivals = tuple(times[0] - start_s for times, _, _ in rows)
    kwargs = meta["engine_kwargs"]
    scheduler = {name: int(kwargs[name]) for name in SETTINGS if kwargs.get(name)}
    if blocks := (meta.get("kv_cache") or {}).get("num_gpu_blocks"):
        scheduler["num_gpu_blocks"] = int(blocks)
    tp, replicas = int(kwargs.get("tensor_parallel_size", 1)), int(kwargs.get("data_parallel_size", 1))
    shared = bool(kwargs.get("enable_expert_parallel"))
    if replicas > 1 and not shared:
        raise ChipError(f"{file.with_name('meta.json')}: data parallelism without shared experts is not replayed")
    return TrafficRun(
        model=model,
        engine="vllm",
        dtype="bf16",
        workload="sharegpt",
        rate_per_s=float(f"{(len(rows) - 1) / max(arrivals[-1], 1e-9):.3g}"),
        seed=int(kwargs.get("seed", 0)),
        status="ok",
        arrival_s=arrivals,
        prompt=tuple(prompt for _, prompt, _ in rows),
        output=tuple(output for _, _, output in rows),
        first_s=tuple(times[2] - clock_s for times, _, _ in rows),
        last_s=tuple(times[3] - clock_s for times, _, _ in rows),
        tp=tp,
        ep=tp * replicas if shared else 1,
        scheduler=scheduler,
        engine_version=str(meta.get("vllm_version", "")),
        device=device,
    )
