"""Copies between host and device, from pinned memory and from ordinary memory."""

from __future__ import annotations

from functools import partial

import torch

from chip.lab.measure.bench import Bench, ProbeCase, Skip
from chip.lab.measure.journal import Outcome
from chip.lab.measure.timing import events, host


def cases(bench: Bench) -> list[ProbeCase]:
    seconds = 0.7 * bench.budget.rule.max_seconds * (bench.device.kind == "cuda")
    return [
        ProbeCase(f"{way}_{kind}", (f"{way}_{kind}",), seconds, partial(_copy, way=way, kind=kind))
        for way in ("h2d", "d2h")
        for kind in ("pinned", "pageable")
    ]


def _copy(bench: Bench, way: str, kind: str) -> Outcome:
    if bench.device.kind == "cpu":
        raise Skip("a CPU has no copies between host and device")
    size = bench.buffer_bytes(bench.budget.transfer_bytes)
    there = bench.buffer(0, size)
    here = torch.empty(size // 4, pin_memory=kind == "pinned").copy_(there)
    source, target = (here, there) if way == "h2d" else (there, here)
    if kind == "pinned":
        take = events(bench.device, [lambda: target.copy_(source, non_blocking=True)], 4)
    else:
        take = host(bench.device, lambda: target.copy_(source))
    target.copy_(source)
    rate = bench.rate(bench.collect(take), size, "B/s", f"copy of {size >> 20} MiB, {kind} host memory")
    if kind == "pageable":  # staged by the host's own copies: its property, not the GPU's
        return Outcome(terms={f"{way}_pageable": rate})
    return Outcome(ceilings={f"{way}_{kind}": rate})
