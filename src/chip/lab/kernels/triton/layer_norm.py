"""LayerNorm forward: read each row once, keep it in registers, take mean and variance there, write the result."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.lab.kernels import plans
from chip.lab.kernels.triton import rows
from chip.lab.kernels.triton.language import jit, tl, usable
from chip.lab.kernels.triton.rows import added, again, grouped, inside, load_parts, with_part
from chip.lab.measure.build import normal
from chip.ops.elementwise import Elementwise, LayerNorm

KIND = "layer_norm"
EPS = 1e-5
NEAR = tl.constexpr(32) if tl else 32  # columns whose mean is near the row's: one a lane, the same in every warp
BENCH = [
    *rows.mebibytes(LayerNorm, 256, (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)),
    LayerNorm(4 * 512, 1024),
]


@jit
def _layer_norm(
    x, weight, bias, out, rows, cols, x_step, out_step, eps, ROWS: tl.constexpr, COLS: tl.constexpr,
    EVICT: tl.constexpr, CACHE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    col = tl.arange(0, COLS)[None, :]
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < rows) & (col < cols)
        at = x + row * x_step + col
        v = tl.load(at, mask=inside, other=0.0, eviction_policy=EVICT, cache_modifier=CACHE).to(tl.float32)
        mean = tl.sum(v, 1)[:, None] / cols
        v = tl.where(col < cols, v - mean, 0.0)  # what pads the row must not count
        scale = 1 / tl.sqrt(tl.sum(v * v, 1)[:, None] / cols + eps)
        w = tl.load(weight + col, mask=col < cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
        b = tl.load(bias + col, mask=col < cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
        to = out + row * out_step + col
        tl.store(to, v * scale * w + b, mask=inside, eviction_policy=EVICT, cache_modifier=CACHE)


@jit
def _layer_norm_held(
    x, weight, bias, out, rows, cols, x_step, out_step, eps, COLS: tl.constexpr, PARTS: tl.constexpr,
    FETCHED: tl.constexpr, KEPT: tl.constexpr, EVICT: tl.constexpr, CACHE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A long row, held in parts of COLS columns as they came from memory. Each 16 bytes of a thread have a mean and
    squares of their own, into which those of the next part merge (Welford's moments in Chan's form): parts are summed
    as they arrive, and nothing cancels. Of 16-bit rows the threads' moments are then joined about the mean of the first
    columns, so that one reduction does for both sums: however those columns lie, at most cols / NEAR of what fp32
    resolves is lost, far less than the result can show."""
    lane = tl.arange(0, COLS)
    GROUP: tl.constexpr = 128 // x.dtype.element_ty.primitive_bitwidth
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0), num_stages=STAGES):
        if GROUP == 8:
            begin = tl.load(x + row * x_step + tl.minimum(tl.arange(0, NEAR), cols - 1)).to(tl.float32)
        held = load_parts(x + row * x_step, cols, 0.0, PARTS, COLS, EVICT, CACHE)
        mean = tl.zeros((COLS // GROUP,), tl.float32)
        squares = tl.zeros((COLS // GROUP,), tl.float32)
        for i in tl.static_range(PARTS):
            v = grouped(held[i], GROUP).to(tl.float32)
            if i < PARTS - 1:
                own = tl.sum(v, 1) * (1 / GROUP)
                v -= own[:, None]
                share = 1 / (i + 1)
            else:
                here = grouped(inside(lane, cols, i, PARTS, COLS), GROUP)
                count = tl.sum(here.to(tl.float32), 1)
                own = tl.sum(v, 1) / tl.maximum(count, 1)
                v = tl.where(here, v - own[:, None], 0.0)
                count += i * GROUP
                share = 1 - i * GROUP / tl.maximum(count, 1)
            step = own - mean
            mean += step * share
            squares += tl.sum(v * v, 1) + step * step * (i * GROUP * share)
        w, b = (), ()
        for i in tl.static_range(FETCHED):
            w = with_part(w, weight, cols, i, 0, PARTS, COLS, KEPT)
            b = with_part(b, bias, cols, i, PARTS * COLS, PARTS, COLS, KEPT)
        if GROUP == 8:
            near = tl.sum(begin, 0) / NEAR
            off = mean - near
            first, second = tl.reduce((count * off, squares + count * off * off), 0, added)
            first /= cols
            middle = near + first
            scale = 1 / tl.sqrt(tl.maximum(second / cols - first * first, 0.0) + eps)
        else:
            middle = tl.sum(count * mean, 0) / cols
            off = mean - middle
            scale = 1 / tl.sqrt(tl.sum(squares + count * off * off, 0) / cols + eps)
        for i in tl.static_range(PARTS):
            here = inside(lane, cols, i, PARTS, COLS)
            col = i * COLS + lane
            w = with_part(w, weight, cols, i + FETCHED, 0, PARTS, COLS, KEPT)
            b = with_part(b, bias, cols, i + FETCHED, PARTS * COLS, PARTS, COLS, KEPT)
            y = (again(held[i], scale) - middle) * scale * w[i].to(tl.float32) + b[i].to(tl.float32)
            tl.store(out + row * out_step + col, y, mask=here, eviction_policy=EVICT, cache_modifier=CACHE)


@jit
def _layer_norm_twice(
    x, weight, bias, out, rows, cols, x_step, out_step, eps, COLS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A row too long for registers, in chunks, read again for the result."""
    lane = tl.arange(0, COLS)
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        first = tl.load(x + row * x_step + lane, mask=lane < cols, other=0.0, eviction_policy="evict_last")
        near = tl.sum(first.to(tl.float32), 0) / tl.minimum(cols, COLS)
        sums = tl.zeros((COLS,), tl.float32)
        squares = tl.zeros((COLS,), tl.float32)
        for start in tl.range(0, cols, COLS, num_stages=STAGES):
            col = start + lane
            v = tl.load(x + row * x_step + col, mask=col < cols, other=0.0, eviction_policy="evict_last")
            v = tl.where(col < cols, v.to(tl.float32) - near, 0.0)
            sums += v
            squares += v * v
        shift = tl.sum(sums, 0) / cols
        scale = 1 / tl.sqrt(tl.sum(squares, 0) / cols - shift * shift + eps)
        mean = near + shift
        for start in tl.range(0, cols, COLS, num_stages=STAGES):
            col = start + lane
            v = tl.load(x + row * x_step + col, mask=col < cols, other=0.0, eviction_policy="evict_first")
            w = tl.load(weight + col, mask=col < cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
            b = tl.load(bias + col, mask=col < cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
            y = (v.to(tl.float32) - mean) * scale * w + b
            tl.store(out + row * out_step + col, y, mask=col < cols, eviction_policy="evict_first")


def run(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    out: torch.Tensor | None = None,
    plan: plans.LaunchPlan | None = None,
) -> torch.Tensor:
    if not usable(x):
        return native(x, weight, bias)
    out = torch.empty_like(x) if out is None else out
    flat, to = rows.flat(x), rows.flat(out)
    count, cols = flat.shape
    p = plan or plans.plan(KIND, cols, x.element_size())
    kernel = rows.choose(p, _layer_norm, _layer_norm_held, _layer_norm_twice)
    kernel[rows.grid(p, count, x.device)](
        flat, weight, bias, to, count, cols, flat.stride(0), to.stride(0), EPS, **rows.launch(p, cols)
    )
    return out


def inputs(op: Elementwise, device: torch.device, generator: torch.Generator, pad: int = 0) -> tuple[torch.Tensor, ...]:
    vectors = (normal((op.cols,), op.dtype, device, generator) for _ in range(2))
    return rows.random_rows(op, device, generator, pad), *vectors


def native(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return native(x.double(), weight.double(), bias.double())
