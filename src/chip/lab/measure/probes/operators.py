"""Operators at a few sizes that lie far apart: what the device's base times are fitted to (`chip.lab.measure.fit`)."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import dist
from typing import Any, NamedTuple

from chip import ops
from chip.lab.measure import build, profile
from chip.lab.measure.bench import Bench, ProbeCase, Skip
from chip.lab.measure.journal import Outcome
from chip.lab.measure.point_cases import SuiteCase, groups
from chip.types import Op

BF16, BOTH = ("bf16",), ("fp32", "bf16")
# Sustained arithmetic is as many as tell the clock that it settles at.
LARGE = 6
SHARE_OF_FREE = 1 / 8


class MeasuredKernel(NamedTuple):
    kind: str
    implementation: str
    context: str
    size_count: int
    widths: tuple[int, ...] = ()  # columns: each width is compiled by itself
    on: tuple[str, ...] = ("cuda", "cpu")


# In this order, so that what a model spends most of its time in is measured where time runs short.
KERNELS = (
    MeasuredKernel("linear", "torch", "cold", 56),
    MeasuredKernel("attention", "flash", "cold", 32),
    MeasuredKernel("attention", "cudnn", "cold", 36, on=("cuda",)),
    MeasuredKernel("growing_attention", "flash", "cold", 14, on=("cpu",)),
    MeasuredKernel("add", "torch", "hot", 14),
    MeasuredKernel("rms_norm_composed", "torch", "hot", 12),
    MeasuredKernel("rope_composed", "torch", "hot", 12),
    MeasuredKernel("silu_mul", "torch", "hot", 12),
    MeasuredKernel("masked_attention", "torch", "cold", 16),
    MeasuredKernel("layer_norm", "torch", "hot", 12),
    MeasuredKernel("gelu", "torch", "hot", 10),
    MeasuredKernel("embedding", "torch", "cold", 12),
    MeasuredKernel("sampling", "fp32", "hot", 16),
    MeasuredKernel("kv_append", "torch", "hot", 12),
    MeasuredKernel("moe_experts_composed", "torch", "cold", 12),
    MeasuredKernel("add_rms_norm", "compiled", "cold", 10, (4096,), on=("cuda",)),
    MeasuredKernel("silu_mul", "compiled", "cold", 10, (14336,), on=("cuda",)),
)


def cases(bench: Bench) -> list[ProbeCase]:
    share_s = bench.budget.operator_share * bench.budget.operator_case_s
    return [
        ProbeCase(
            f"{k.kind}_{k.implementation}_{dtype}", (f"{k.kind} ({k.implementation}, {dtype})",),
            k.size_count * share_s, partial(_measure, kernel=k, dtype=dtype),
        )
        for k in KERNELS
        if bench.device.kind in k.on
        for dtype in (BF16 if bench.device.kind == "cuda" else BOTH)
    ]  # fmt: skip


def _measure(bench: Bench, kernel: MeasuredKernel, dtype: str) -> Outcome:
    chosen, device = sizes(bench, kernel, dtype), bench.device
    if not chosen:
        raise Skip(f"no size of {kernel.kind} takes under {bench.budget.operator_s * 1e3:.3g} ms here")
    settings = replace(bench.budget.operators, max_s=bench.budget.operators.max_s * bench.time_scale)
    gc.collect()
    gc.freeze()  # what lives through the case is looked through once, not after each size
    records = [
        m
        for op in chosen
        for m in profile.profile_case(
            SuiteCase(op, kernel.implementation, kernel.context), device, [kernel.context], settings
        )
    ]
    gc.unfreeze()
    if not any(m.status == "ok" for m in records):
        raise Skip(records[0].reason)
    return Outcome(measured={f"{kernel.kind} ({kernel.implementation}, {dtype})": tuple(records)})


def sizes(bench: Bench, kernel: MeasuredKernel, dtype: str) -> list[Op]:
    """Those of the bundled points that the device runs in a moment, as far apart as they can be."""
    known: dict[Op, None] = {}
    for g in groups():
        if g.kind == kernel.kind and g.dtype == "bf16" and g.implementation in (kernel.implementation, "torch"):
            known.update((replace(op, dtype=dtype), None) for op in g.ops)  # type: ignore[type-var]
    short = [op for op in known if _fits(bench, kernel, op)]
    large = [op for op in short if op.cost().flops > bench.budget.operator_large_flops]
    count = round(kernel.size_count * bench.budget.operator_share)
    return farthest([op for op in short if op not in large], count - LARGE * bool(large)) + farthest(large, LARGE)


def _fits(bench: Bench, kernel: MeasuredKernel, op: Op) -> bool:
    cost, columns = op.cost(), getattr(op, "cols", 0)
    if kernel.widths and columns not in kernel.widths:
        return False
    if kernel.implementation not in build.implementations(op, bench.device.kind):
        return False
    rates = bench.found.ceilings
    flops = rates.get(op.compute) or rates.get("matmul_fp32") or bench.need("matmul_bf16")
    arithmetic_s = cost.flops / flops.value if ops.multiplies(op.kind) else 0.0
    within = max(arithmetic_s, cost.bytes / bench.need("hbm_copy").value) < bench.budget.operator_s
    return within and cost.bytes < SHARE_OF_FREE * bench.device.memory_bytes


def farthest(known: Sequence[Any], count: int) -> list[Any]:
    """So many of them, each as far as can be from those before, from the middle outwards."""
    places = [op.place() for op in known]
    if len(known) <= count:  # none, too
        return list(known)
    middle = [sum(axis) / len(places) for axis in zip(*places)]
    apart, chosen = [-dist(place, middle) for place in places], list[int]()
    for _ in range(count):
        best = max(range(len(places)), key=apart.__getitem__)
        reach = [dist(place, places[best]) for place in places]
        apart = reach if not chosen else [min(a, b) for a, b in zip(apart, reach)]
        chosen.append(best)
    return [known[i] for i in chosen]
