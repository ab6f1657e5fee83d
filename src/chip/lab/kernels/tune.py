"""Which configuration of a kernel is fastest here: every candidate in turn, cold, on one call. The best can be kept."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from chip import stats
from chip.hardware.roofline import label
from chip.lab.kernels import plans
from chip.lab.kernels.subjects import KernelSubject
from chip.lab.measure import timing
from chip.lab.measure.device import Device, reason_of
from chip.lab.measure.stopping import StopRule, collect_interleaved
from chip.types import ChipError, Op

RULE = StopRule(0.005, 10, 40, 0.1)


def tunable(s: KernelSubject) -> bool:
    return hasattr(s.module, "CONFIGS") or "plan" in inspect.signature(s.module.run).parameters


def ways(s: KernelSubject, op: Op) -> dict[str, tuple[Callable[..., Any], plans.LaunchPlan | int]]:
    """Name -> how to call it, and what is kept where it is the best."""
    if hasattr(s.module, "CONFIGS"):
        variants = [v for v in s.variants if ":" in v.name and not v.unusable]  # without one: whatever is kept
        return {v.name: (v.call, int(v.name.partition(":")[2])) for v in variants}
    tried = getattr(s.module, "CANDIDATES", None) or plans.candidates(s.kind, op.cols)  # type: ignore[attr-defined]
    return {str(p): (partial(s.module.run, plan=p), p) for p in tried}


def keep(s: KernelSubject, op: Op, rows: Sequence[Mapping[str, Any]]) -> None:
    """The best found for this call, for every later one like it: of each rung, or for rows of this length."""
    if op.dtype not in ("bf16", "fp16"):  # type: ignore[attr-defined]
        raise ChipError(f"--keep: plans are kept for bf16 and fp16, this call is {op.dtype}")  # type: ignore[attr-defined]
    choices = {name: choice for name, (_, choice) in ways(s, op).items()}
    best: dict[str, str] = {}
    for row in rows:  # fastest first
        if "p50_s" in row:
            best.setdefault(row["config"].partition(":")[0] if hasattr(s.module, "CONFIGS") else s.name, row["config"])
    for kernel, config in best.items():
        plans.keep(kernel, key_of(s, op), choices[config])


def key_of(s: KernelSubject, op: Op) -> str | int:
    if hasattr(s.module, "CONFIGS"):
        return plans.product(op.m, op.n, op.k)  # type: ignore[attr-defined]
    if hasattr(s.module, "key"):
        return int(s.module.key(op))
    return plans.ANY if hasattr(s.module, "CANDIDATES") else op.cols  # type: ignore[attr-defined]


def compiled(calls: Mapping[str, Callable[..., Any]], tensors: Any, device: Device) -> dict[str, Exception]:
    """Run each once, several at a time: most of tuning is waiting for compilers. What went wrong, by name."""

    def first(call: Callable[..., Any]) -> None:
        if device.kind == "cuda":
            torch.cuda.set_device(device.torch_device)  # which is each thread's own
        call(*tensors)
        device.synchronize()

    workers = min(8, os.cpu_count() or 1) if device.kind == "cuda" else 1  # the interpreter is not for threads
    with ThreadPoolExecutor(workers) as pool:
        futures = {name: pool.submit(first, call) for name, call in calls.items()}
    return {name: e for name, f in futures.items() if isinstance(e := f.exception(), Exception)}


def tune(s: KernelSubject, op: Op, device: Device) -> list[dict[str, Any]]:
    """Rows of (config, seconds), fastest first; a candidate that does not run has a reason instead."""
    generator = torch.Generator(device.torch_device).manual_seed(11)
    count = min(64, timing.cold_copies(device, op.cost().read_bytes)) if device.kind == "cuda" else 1
    try:
        sets = [s.module.inputs(op, device.torch_device, generator) for _ in range(count)]
    except (MemoryError, RuntimeError) as e:
        raise ChipError(f"{label(op)} cannot be set up here: {reason_of(e)}") from None
    calls = {name: call for name, (call, _) in ways(s, op).items()}
    takes, failed = {}, []
    with torch.no_grad():
        broken = compiled(calls, sets[0], device)
        for name, call in calls.items():
            closures = [(lambda c=call, t=tensors: c(*t)) for tensors in sets]
            try:
                if name in broken:
                    raise broken[name]
                takes[name] = timing.events(device, closures, timing.inner_for(device, closures, 1e-3))
            except Exception as e:  # more registers or shared memory than there are
                failed.append({"config": name, "reason": reason_of(e)})
        for _ in range(3):
            for take in takes.values():
                take()
        samples = collect_interleaved(takes, RULE, device)
    cost = op.cost()
    seconds = {name: stats.median(f.samples_ns) * 1e-9 for name, f in samples.items()}
    timed = [
        {"config": name, "p50_s": p50, "bytes_per_s": cost.bytes / p50, "flops_per_s": cost.flops / p50}
        for name, p50 in sorted(seconds.items(), key=lambda item: item[1])
    ]
    return [*timed, *failed]
