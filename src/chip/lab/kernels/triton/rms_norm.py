"""RMSNorm forward: x / sqrt(mean(x^2) + eps) * weight, each row read once."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.lab.kernels import plans
from chip.lab.kernels.triton import rows
from chip.lab.kernels.triton.language import early, jit, overlapped, tl, usable
from chip.lab.kernels.triton.rows import again, grouped, inside, load_parts, with_part
from chip.lab.measure.build import normal
from chip.ops.elementwise import Elementwise, RmsNorm

KIND = "rms_norm"
EPS = 1e-6
BENCH = [*rows.mebibytes(RmsNorm, 256, (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)), RmsNorm(4 * 512, 1024)]


@jit
def _rms_norm(
    x, weight, out, rows, cols, x_step, out_step, eps, ROWS: tl.constexpr, COLS: tl.constexpr, EVICT: tl.constexpr,
    CACHE: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        overlapped()
    col = tl.arange(0, COLS)[None, :]
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < rows) & (col < cols)
        at = x + row * x_step + col
        v = tl.load(at, mask=inside, other=0.0, eviction_policy=EVICT, cache_modifier=CACHE).to(tl.float32)
        scale = 1 / tl.sqrt(tl.sum(v * v, 1)[:, None] / cols + eps)
        w = tl.load(weight + col, mask=col < cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
        to = out + row * out_step + col
        tl.store(to, v * scale * w, mask=inside, eviction_policy=EVICT, cache_modifier=CACHE)


@jit
def _rms_norm_held(
    x, weight, out, rows, cols, x_step, out_step, eps, COLS: tl.constexpr, PARTS: tl.constexpr, FETCHED: tl.constexpr,
    KEPT: tl.constexpr, EVICT: tl.constexpr, CACHE: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """A long row, held in parts of COLS columns as they came from memory."""
    if OVERLAP:
        overlapped()
    GROUP: tl.constexpr = 128 // x.dtype.element_ty.primitive_bitwidth
    lane = tl.arange(0, COLS)
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0), num_stages=STAGES):
        held = load_parts(x + row * x_step, cols, 0.0, PARTS, COLS, EVICT, CACHE)
        squares = tl.zeros((COLS // GROUP,), tl.float32)
        for i in tl.static_range(PARTS):
            v = grouped(held[i], GROUP).to(tl.float32)
            squares += tl.sum(v * v, 1)
        w = ()
        for i in tl.static_range(FETCHED):
            w = with_part(w, weight, cols, i, 0, PARTS, COLS, KEPT)
        scale = 1 / tl.sqrt(tl.sum(squares, 0) / cols + eps)
        for i in tl.static_range(PARTS):
            here = inside(lane, cols, i, PARTS, COLS)
            col = i * COLS + lane
            w = with_part(w, weight, cols, i + FETCHED, 0, PARTS, COLS, KEPT)
            y = again(held[i], scale) * scale * w[i].to(tl.float32)
            tl.store(out + row * out_step + col, y, mask=here, eviction_policy=EVICT, cache_modifier=CACHE)


@jit
def _rms_norm_twice(x, weight, out, rows, cols, x_step, out_step, eps, COLS: tl.constexpr, STAGES: tl.constexpr,
                    OVERLAP: tl.constexpr):  # fmt: skip
    """A row too long for registers, in chunks, read again for the result."""
    if OVERLAP:
        overlapped()
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        squares = tl.zeros((COLS,), tl.float32)
        for start in tl.range(0, cols, COLS, num_stages=STAGES):
            col = start + tl.arange(0, COLS)
            v = tl.load(x + row * x_step + col, mask=col < cols, other=0.0, eviction_policy="evict_last")
            v = v.to(tl.float32)
            squares += v * v
        scale = 1 / tl.sqrt(tl.sum(squares, 0) / cols + eps)
        for start in tl.range(0, cols, COLS, num_stages=STAGES):
            col = start + tl.arange(0, COLS)
            v = tl.load(x + row * x_step + col, mask=col < cols, other=0.0, eviction_policy="evict_first")
            w = tl.load(weight + col, mask=col < cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
            y = v.to(tl.float32) * scale * w
            tl.store(out + row * out_step + col, y, mask=col < cols, eviction_policy="evict_first")


def run(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor | None = None,
    plan: plans.LaunchPlan | None = None,
    eps: float = EPS,
    overlap: bool = False,
) -> torch.Tensor:
    if not usable(x):
        return native(x, weight, eps)
    out = torch.empty_like(x) if out is None else out
    flat, to = rows.flat(x), rows.flat(out)
    count, cols = flat.shape
    p = plan or plans.plan(KIND, cols, x.element_size())
    kernel = rows.choose(p, _rms_norm, _rms_norm_held, _rms_norm_twice)
    kernel[rows.grid(p, count, x.device)](
        flat, weight, to, count, cols, flat.stride(0), to.stride(0), eps, OVERLAP=overlap, **early(overlap),
        **rows.launch(p, cols),
    )  # fmt: skip
    return out


def inputs(op: Elementwise, device: torch.device, generator: torch.Generator, pad: int = 0) -> tuple[torch.Tensor, ...]:
    return rows.random_rows(op, device, generator, pad), normal((op.cols,), op.dtype, device, generator)


def native(x: torch.Tensor, weight: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return native(x.double(), weight.double())
