"""Which configuration of a kernel is fastest here: every candidate in turn, cold, on one call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from chip import stats
from chip.kernels.subjects import Subject
from chip.kernels.triton import rows
from chip.measure import timing
from chip.measure.device import Device
from chip.measure.profile import reason_of
from chip.measure.timer import StopRule, collect_interleaved
from chip.types import Op

RULE = StopRule(0.005, 10, 40, 0.1)


def tunable(s: Subject) -> bool:
    return hasattr(s.module, "CONFIGS") or "plan" in inspect.signature(s.module.run).parameters


def ways(s: Subject, op: Op) -> dict[str, Callable[..., Any]]:
    """Name -> how to call it."""
    if hasattr(s.module, "CONFIGS"):
        return {v.name: v.call for v in s.variants if v.name.split(":")[0] in s.module.CONFIGS and not v.unusable}
    plans = rows.candidates(op.cols)  # type: ignore[attr-defined]
    return {str(p): _planned(s.module.run, p) for p in plans}


def _planned(run: Callable[..., Any], plan: rows.Plan) -> Callable[..., Any]:
    return lambda *tensors: run(*tensors, plan=plan)


def tune(s: Subject, op: Op, device: Device) -> list[dict[str, Any]]:
    """Rows of (config, seconds), fastest first; a candidate that does not run has a reason instead."""
    generator = torch.Generator(device.torch_device).manual_seed(11)
    count = min(64, timing.cold_copies(device, op.cost().read_bytes)) if device.kind == "cuda" else 1
    sets = [s.module.inputs(op, device.torch_device, generator) for _ in range(count)]
    takes, failed = {}, []
    with torch.no_grad():
        for name, call in ways(s, op).items():
            closures = [(lambda c=call, t=tensors: c(*t)) for tensors in sets]
            try:
                closures[0]()
                device.synchronize()
                takes[name] = timing.events(device, closures, timing.inner_for(device, closures, 1e-3))
            except Exception as e:  # more registers or shared memory than there are
                failed.append({"config": name, "reason": reason_of(e)})
        for _ in range(3):
            for take in takes.values():
                take()
        found = collect_interleaved(takes, RULE, read_clock_hz=device.clock_hz, boost_hz=device.boost_hz)
    cost = op.cost()
    seconds = {name: stats.median(f.samples_ns) * 1e-9 for name, f in found.items()}
    timed = [
        {"config": name, "p50_s": p50, "bytes_per_s": cost.bytes / p50, "flops_per_s": cost.flops / p50}
        for name, p50 in sorted(seconds.items(), key=lambda item: item[1])
    ]
    return [*timed, *failed]
