"""Which share of the roof real matrix products get: square, skinny and irregular ones, weights cold, as in a model.

A prediction is time = launch_graph + work / (ceiling x factor), so factor = (work / ceiling) / (time - launch_graph).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from chip.measure.bench import DTYPES, Bench, ProbeCase
from chip.measure.journal import Outcome
from chip.measure.timing import Call, cold_copies, graph, inner_for, rested
from chip.ops.linear import Linear
from chip.stats import median, quantile
from chip.types import Ceiling, Curve

# (n, k) in units of the model's width: q+k+v, o, gate+up, down, vocabulary, and some that fit no tile
WEIGHTS = ((1.5, 1), (1, 1), (7, 1), (1, 3.5), (1.25, 3.3), (0.61, 1.07), (2, 2), (16, 1))
ROWS = (1, 2048, 16, 333, 64, 8192, 1000, 256, 4096, 8, 512, 1777)


@dataclass(frozen=True)
class RooflineShare:
    op: Linear
    bound: str  # "compute" or "memory", by the ridge of the measured ceilings
    value: float


def cases(bench: Bench) -> list[ProbeCase]:
    seconds = bench.budget.gemm_shapes * (0.1 + bench.budget.trial.max_seconds / 2) + 0.5
    return [ProbeCase("gemm", ("tensor_utilisation", "gemm_memory"), seconds, _gemm)]


def shapes(count: int, width: int, rows_scale: float) -> Iterator[tuple[int, int, int]]:
    """Every size of batch with every weight, diagonally, so that any count of them is diverse."""
    for i in range(count):
        n, k = WEIGHTS[(i + i // len(ROWS)) % len(WEIGHTS)]
        m = ROWS[i % len(ROWS)]
        yield max(1, round(m * rows_scale)) if m > 64 else m, round(n * width / 8) * 8, round(k * width / 8) * 8


def _dtype(bench: Bench) -> str:
    """bf16 where it is the faster one, as on any GPU that serves models."""
    found = {d: bench.found.ceilings.get(f"matmul_{d}") for d in ("bf16", "fp16", "fp32")}
    rates = {d: c.value for d, c in found.items() if c is not None}
    if not rates:
        bench.need("matmul_bf16")
    return "bf16" if rates.get("bf16", 0) > 0.5 * max(rates.values()) else max(rates, key=lambda d: rates[d])


def _gemm(bench: Bench) -> Outcome:
    dtype = _dtype(bench)
    flops_per_s, bytes_per_s = bench.need(f"matmul_{dtype}"), bench.need("hbm_read")
    launch = bench.found.ceilings.get("launch_graph") or bench.found.ceilings.get("launch_stream")
    floor_s = launch.value if launch else 0.0
    scale = bench.budget.gemm_width / 4096
    ops = [Linear(m, n, k, dtype) for m, n, k in shapes(bench.budget.gemm_shapes, bench.budget.gemm_width, scale)]
    width = DTYPES[dtype].itemsize
    largest = max(op.n * op.k * width for op in ops)
    pool = bench.normal(((4 * bench.device.l2_bytes + 2 * largest) // width,), DTYPES[dtype])
    shares = []
    for op in ops:
        cost = op.cost()
        compute_s, memory_s = cost.flops / flops_per_s.value, cost.bytes / bytes_per_s.value
        spent_s = max(_time_s(bench, op, pool) - floor_s, 1e-9)
        bound = "compute" if compute_s >= memory_s else "memory"
        shares.append(RooflineShare(op, bound, max(compute_s, memory_s) / spent_s))
    basis = {"compute": f"matmul_{dtype}", "memory": "hbm_read"}
    factors, curves, missing = {}, {}, {}
    for name, bound in (("tensor_utilisation", "compute"), ("gemm_memory", "memory")):
        mine = [s for s in shares if s.bound == bound]
        if len(mine) < 3:
            missing[name] = f"only {len(mine)} of {len(shares)} matrix products are {bound}-bound here"
            continue
        factors[name] = spread(
            [s.value for s in mine], f"{len(mine)} {bound}-bound {dtype} products over {basis[bound]}"
        )
        curves[name] = _by_intensity(mine, basis[bound])
    return Outcome(factors=factors, curves=curves, missing=missing)


def _time_s(bench: Bench, op: Linear, pool: torch.Tensor) -> float:
    device = bench.device
    x = bench.normal((op.m, op.k), pool.dtype)
    out = torch.empty(op.m, op.n, device=pool.device, dtype=pool.dtype)
    size = op.n * op.k
    copies = min(cold_copies(device, size * pool.element_size()), pool.numel() // size)

    def call(i: int) -> Call:
        w = pool[i * size : (i + 1) * size].view(op.n, op.k).t()
        return lambda: torch.mm(x, w, out=out)

    calls = [call(i) for i in range(copies)]
    inner = max(copies, inner_for(device, calls, 1e-3, 200)) if device.kind == "cuda" else 1
    take = rested(device, graph(device, calls, inner), inner)
    return median(bench.collect(take, bench.budget.trial).samples_ns) * 1e-9


def spread(values: list[float], method: str) -> Ceiling:
    """Median, with the 10th and 90th percentile over operators as bounds: a spread, not an error of the median."""
    method += "; median, p10 and p90 over shapes; weights cold, activations warm, launch floor taken off, boost clocks"
    kept = tuple(float(f"{v:.6g}") for v in values)
    return Ceiling(median(values), quantile(values, 0.1), quantile(values, 0.9), "1", method, kept)


def _by_intensity(shares: list[RooflineShare], basis: str) -> Curve:
    points = sorted((s.op.cost().intensity, s.value, f"{s.op.m}x{s.op.n}x{s.op.k}") for s in shares)
    return Curve(
        "intensity",
        "FLOP/B",
        f"share of {basis}",
        "1",
        tuple(p[0] for p in points),
        tuple(p[1] for p in points),
        "m x n x k: " + " ".join(p[2] for p in points),
    )
