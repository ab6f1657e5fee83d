"""Which share of the roof real matrix products get: square, skinny and irregular ones, weights cold, as in a model.

A prediction is time = launch_graph + work / (ceiling x share), so share = (work / ceiling) / (time - launch_graph).
Predictions take the shares of the nearest products; the factors are their medians on either side of the ridge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from chip.lab.measure.bench import DTYPES, Bench, ProbeCase
from chip.lab.measure.journal import Outcome
from chip.lab.measure.timing import Call, cold_copies, graph, inner_for, rested
from chip.ops.linear import Linear
from chip.stats import median, quantile
from chip.types import Ceiling, Curve, RoofShare

# (n, k) in units of the model's width: q+k+v, o, gate+up, down, vocabulary, and some that fit no tile
WEIGHTS = ((1.5, 1), (1, 1), (7, 1), (1, 3.5), (1.25, 3.3), (0.61, 1.07), (2, 2), (16, 1))
CPU_FORMATS = ("fp32", "bf16")


@dataclass(frozen=True)
class RooflineShare:
    op: Linear
    bound: str  # "compute" or "memory", by the ridge of the measured ceilings
    value: float


def cases(bench: Bench) -> list[ProbeCase]:
    seconds = bench.budget.gemm_shapes * (0.05 + bench.budget.trial.max_seconds / 4) + 0.5
    seconds *= 2 if bench.device.kind == "cpu" else 1
    other = ProbeCase("gemm_other_format", ("shares of the other format",), seconds, _other)
    main = ProbeCase("gemm", ("tensor_utilisation", "gemm_memory"), seconds, _gemm)
    return [main, other] if bench.device.kind == "cpu" else [main]


def shapes(count: int, rows: Sequence[int], widths: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Every size of batch with every weight, diagonally, so that any count of them is diverse."""
    for i in range(count):
        n, k = WEIGHTS[(i + i // len(rows)) % len(WEIGHTS)]
        width = widths[i // len(WEIGHTS) % len(widths)]
        yield rows[i % len(rows)], round(n * width / 8) * 8, round(k * width / 8) * 8


def _dtype(bench: Bench) -> str:
    """bf16 where it is the faster one, as on any GPU that serves models."""
    ceilings = {d: bench.found.ceilings.get(f"matmul_{d}") for d in ("bf16", "fp16", "fp32")}
    rates = {d: c.value for d, c in ceilings.items() if c is not None}
    if not rates:
        bench.need("matmul_bf16")
    return "bf16" if rates.get("bf16", 0) > 0.5 * max(rates.values()) else max(rates, key=lambda d: rates[d])


def _other(bench: Bench) -> Outcome:
    """The shares alone. Formats have little in common on a CPU: one is the hardware's, another may be emulated."""
    dtype = next(d for d in CPU_FORMATS if d != _dtype(bench))
    return Outcome(shares={f"matmul_{dtype}": _kept(_shares(bench, dtype))})


def _gemm(bench: Bench) -> Outcome:
    dtype = _dtype(bench)
    shares = _shares(bench, dtype)
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
    return Outcome(factors=factors, curves=curves, missing=missing, shares={f"matmul_{dtype}": _kept(shares)})


def _kept(shares: Sequence[RooflineShare]) -> tuple[RoofShare, ...]:
    return tuple(RoofShare(s.op.cost().flops, s.op.cost().bytes, float(f"{s.value:.6g}")) for s in shares)


def _shares(bench: Bench, dtype: str) -> list[RooflineShare]:
    flops_per_s, bytes_per_s = bench.need(f"matmul_{dtype}"), bench.need("hbm_read")
    launch = bench.found.ceilings.get("launch_graph") or bench.found.ceilings.get("launch_stream")
    floor_s, budget = launch.value if launch else 0.0, bench.budget
    sizes = shapes(budget.gemm_shapes, budget.gemm_rows, budget.gemm_widths)
    ops = [Linear(m, n, k, dtype) for m, n, k in sizes]
    width = DTYPES[dtype].itemsize
    largest = max(op.n * op.k * width for op in ops)
    pool = bench.normal(((4 * bench.device.l2_bytes + 2 * largest) // width,), DTYPES[dtype])
    # what disturbs a CPU for a moment disturbs one of two rounds
    rounds = [[_time_s(bench, op, pool) for op in ops] for _ in range(2 if bench.device.kind == "cpu" else 1)]
    shares = []
    for op, times in zip(ops, zip(*rounds)):
        cost = op.cost()
        compute_s, memory_s = cost.flops / flops_per_s.value, cost.bytes / bytes_per_s.value
        spent_s = max(min(times) - floor_s, 1e-9)
        bound = "compute" if compute_s >= memory_s else "memory"
        shares.append(RooflineShare(op, bound, max(compute_s, memory_s) / spent_s))
    return shares


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
    samples = tuple(float(f"{v:.6g}") for v in values)
    return Ceiling(median(values), quantile(values, 0.1), quantile(values, 0.9), "1", method, samples)


def _by_intensity(shares: list[RooflineShare], basis: str) -> Curve:
    points = sorted((s.op.cost().intensity, s.value, f"{s.op.m}x{s.op.n}x{s.op.k}") for s in shares)
    x, y, sizes = zip(*points)
    return Curve("intensity", "FLOP/B", f"share of {basis}", "1", x, y, f"m x n x k: {' '.join(sizes)}")
