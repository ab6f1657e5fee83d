"""Residual addition and RMSNorm in one pass: reads x and the residual, writes their sum and its norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.lab.kernels import plans
from chip.lab.kernels.triton import rows
from chip.lab.kernels.triton.language import early, jit, overlapped, tl, usable
from chip.lab.kernels.triton.rows import again, grouped, inside, with_part
from chip.lab.measure.build import normal
from chip.ops.elementwise import AddRmsNorm, Elementwise

KIND = "add_rms_norm"
EPS = 1e-6
BENCH = rows.mebibytes(AddRmsNorm, 128, (2048, 4096, 8192))


@jit
def _add_rms_norm(
    x, residual, weight, total, out, rows, cols, x_step, r_step, t_step, out_step, eps, ROWS: tl.constexpr,
    COLS: tl.constexpr, EVICT: tl.constexpr, CACHE: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        overlapped()
    col = tl.arange(0, COLS)[None, :]
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < rows) & (col < cols)
        v = tl.load(x + row * x_step + col, mask=inside, other=0.0, eviction_policy=EVICT, cache_modifier=CACHE)
        r = tl.load(residual + row * r_step + col, mask=inside, other=0.0, eviction_policy=EVICT, cache_modifier=CACHE)
        v = (v.to(tl.float32) + r.to(tl.float32)).to(
            total.dtype.element_ty
        )  # the norm is of this, as PyTorch's two kernels have it
        tl.store(total + row * t_step + col, v, mask=inside, eviction_policy=EVICT, cache_modifier=CACHE)
        v = v.to(tl.float32)
        scale = 1 / tl.sqrt(tl.sum(v * v, 1)[:, None] / cols + eps)
        w = tl.load(weight + col, mask=col < cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
        to = out + row * out_step + col
        tl.store(to, v * scale * w, mask=inside, eviction_policy=EVICT, cache_modifier=CACHE)


@jit
def _add_rms_norm_held(
    x, residual, weight, total, out, rows, cols, x_step, r_step, t_step, out_step, eps, COLS: tl.constexpr,
    PARTS: tl.constexpr, FETCHED: tl.constexpr, KEPT: tl.constexpr, EVICT: tl.constexpr, CACHE: tl.constexpr,
    STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """A long row: its sum is held in parts of COLS columns, as it is stored."""
    if OVERLAP:
        overlapped()
    GROUP: tl.constexpr = 128 // x.dtype.element_ty.primitive_bitwidth
    lane = tl.arange(0, COLS)
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0), num_stages=STAGES):
        held = ()
        squares = tl.zeros((COLS // GROUP,), tl.float32)
        for i in tl.static_range(PARTS):
            here = inside(lane, cols, i, PARTS, COLS)
            col = i * COLS + lane
            v = tl.load(x + row * x_step + col, mask=here, other=0.0, eviction_policy=EVICT, cache_modifier=CACHE)
            r = tl.load(
                residual + row * r_step + col, mask=here, other=0.0, eviction_policy=EVICT, cache_modifier=CACHE
            )
            held += ((v.to(tl.float32) + r.to(tl.float32)).to(total.dtype.element_ty),)  # type: ignore
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
            tl.store(total + row * t_step + col, held[i], mask=here, eviction_policy=EVICT, cache_modifier=CACHE)
            tl.store(out + row * out_step + col, y, mask=here, eviction_policy=EVICT, cache_modifier=CACHE)


@jit
def _add_rms_norm_twice(
    x, residual, weight, total, out, rows, cols, x_step, r_step, t_step, out_step, eps, COLS: tl.constexpr,
    STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """A row too long for registers, in chunks: the sum is read again for the result."""
    if OVERLAP:
        overlapped()
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        squares = tl.zeros((COLS,), tl.float32)
        for start in tl.range(0, cols, COLS, num_stages=STAGES):
            col = start + tl.arange(0, COLS)
            v = tl.load(x + row * x_step + col, mask=col < cols, other=0.0, eviction_policy="evict_first")
            r = tl.load(residual + row * r_step + col, mask=col < cols, other=0.0, eviction_policy="evict_first")
            v = (v.to(tl.float32) + r.to(tl.float32)).to(total.dtype.element_ty)
            tl.store(total + row * t_step + col, v, mask=col < cols)
            squares += v.to(tl.float32) * v.to(tl.float32)
        scale = 1 / tl.sqrt(tl.sum(squares, 0) / cols + eps)
        tl.debug_barrier()  # what one thread stored another may load
        for start in tl.range(0, cols, COLS, num_stages=STAGES):
            col = start + tl.arange(0, COLS)
            v = tl.load(total + row * t_step + col, mask=col < cols, other=0.0).to(tl.float32)
            w = tl.load(weight + col, mask=col < cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
            tl.store(out + row * out_step + col, v * scale * w, mask=col < cols)


def run(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    plan: plans.LaunchPlan | None = None,
    eps: float = EPS,
    overlap: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(x + residual, its norm)."""
    if not usable(x):
        return native(x, residual, weight, eps)
    total, normed = out or (torch.empty_like(x), torch.empty_like(x))
    flat = [rows.flat(t) for t in (x, residual, total, normed)]
    count, cols = flat[0].shape
    p = plan or plans.plan(KIND, cols, x.element_size())
    kernel = rows.choose(p, _add_rms_norm, _add_rms_norm_held, _add_rms_norm_twice)
    steps = [t.stride(0) for t in flat]
    kernel[rows.grid(p, count, x.device)](
        *flat[:2], weight, *flat[2:], count, cols, *steps, eps, OVERLAP=overlap, **early(overlap),
        **rows.launch(p, cols),
    )  # fmt: skip
    return total, normed


def inputs(op: Elementwise, device: torch.device, generator: torch.Generator, pad: int = 0) -> tuple[torch.Tensor, ...]:
    both = (rows.random_rows(op, device, generator, pad) for _ in range(2))
    return *both, normal((op.cols,), op.dtype, device, generator)


def native(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = EPS
) -> tuple[torch.Tensor, torch.Tensor]:
    total = x + residual
    return total, F.rms_norm(total, x.shape[-1:], weight, eps)


def reference(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return native(x.double(), residual.double(), weight.double())
