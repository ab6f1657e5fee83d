"""Which share of the copy bandwidth real memory-bound operators get: norms, activations, sums, everything cold."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from chip.lab.measure.bench import DTYPES, Bench, ProbeCase
from chip.lab.measure.journal import Outcome
from chip.lab.measure.probes.gemm import spread
from chip.lab.measure.timing import Call, cold_copies, graph, inner_for
from chip.ops.elementwise import Add, Elementwise, Gelu, LayerNorm, RmsNorm, Silu, SiluMul, Softmax
from chip.stats import median
from chip.types import Curve, RoofShare

COPY = "hbm_copy"  # the ceiling that operators which multiply nothing are shares of
# The input holds every tensor the operator reads, READS x rows x cols elements; `w` is a vector of cols.
Make = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
KERNELS: tuple[tuple[type[Elementwise], Make], ...] = (
    (Add, lambda x, w: torch.add(*x.chunk(2))),
    (RmsNorm, lambda x, w: F.rms_norm(x, w.shape, w)),
    (LayerNorm, lambda x, w: F.layer_norm(x, w.shape, w, w)),
    (Silu, lambda x, w: F.silu(x)),
    (Gelu, lambda x, w: F.gelu(x)),
    (Softmax, lambda x, w: torch.softmax(x, -1)),
    # torch has no fused silu_mul; glu moves the same bytes in one kernel
    (SiluMul, lambda x, w: F.glu(x.view(-1, 2 * w.shape[0]), -1)),
)


def cases(bench: Bench) -> list[ProbeCase]:
    seconds = len(KERNELS) * len(bench.budget.kernel_rows) * (0.05 + bench.budget.trial.max_seconds / 4) + 0.5
    return [ProbeCase("memory_kernel", ("memory_kernel",), seconds, _kernels)]


def _kernels(bench: Bench) -> Outcome:
    bytes_per_s = bench.need(COPY).value
    launch = bench.found.ceilings.get("launch_graph") or bench.found.ceilings.get("launch_stream")
    floor_s = launch.value if launch else 0.0
    dtype = "bf16" if bench.device.kind == "cuda" else "fp32"
    cols = bench.budget.gemm_widths[0]
    ops = [(cls(rows, cols, dtype), make) for rows in bench.budget.kernel_rows for cls, make in KERNELS]
    largest = max(op.READS * op.rows * op.cols for op, _ in ops)
    pool = bench.normal((4 * bench.device.l2_bytes // DTYPES[dtype].itemsize + largest,), DTYPES[dtype])
    points, shares = [], []
    for op, make in ops:
        moved = op.cost().bytes
        spent_s = max(_time_s(bench, op, make, pool) - floor_s, 1e-9)
        share = moved / bytes_per_s / spent_s
        points.append((float(moved), share, f"{op.kind}:{op.rows}x{op.cols}"))
        shares.append(RoofShare(op.cost().flops, moved, float(f"{share:.6g}")))
    points.sort()
    factor = spread([p[1] for p in points], f"{len(points)} {dtype} operators over hbm_copy")
    x, y, names = zip(*points)
    curve = Curve("bytes moved", "B", "share of hbm_copy", "1", x, y, f"operator:rows x cols: {' '.join(names)}")
    return Outcome(factors={"memory_kernel": factor}, curves={"memory_kernel": curve}, shares={COPY: tuple(shares)})


def _time_s(bench: Bench, op: Elementwise, make: Make, pool: torch.Tensor) -> float:
    """On a GPU inputs and outputs rotate: a result is kept until its turn comes again, so its memory is not written
    warm. On a CPU two sets are used in turn, as a model does, which finds in cache what it has just written and gets
    memory that the system has given it before."""
    device = bench.device
    size = op.READS * op.rows * op.cols
    copies = max(1, min(cold_copies(device, op.cost().bytes), pool.numel() // size)) if device.kind == "cuda" else 2
    w = bench.normal((op.cols,), pool.dtype)
    results: list[torch.Tensor | None] = [None] * copies

    def call(i: int) -> Call:
        x = pool[i * size : (i + 1) * size].view(-1, op.cols)

        def run() -> None:
            results[i] = make(x, w)

        return run

    calls = [call(i) for i in range(copies)]
    inner = max(copies, inner_for(device, calls, 5e-4, 200))
    return median(bench.collect(graph(device, calls, inner), bench.budget.trial).samples_ns) * 1e-9
