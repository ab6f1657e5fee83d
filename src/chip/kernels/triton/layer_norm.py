"""LayerNorm forward: read each row once, keep it in registers, take mean and variance there, write the result."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.kernels.triton import rows
from chip.kernels.triton.language import jit, tl, usable
from chip.kernels.triton.rows import again, inside, load_parts
from chip.measure.build import normal
from chip.ops.layer_norm import LayerNorm

KIND = "layer_norm"
EPS = 1e-5
BENCH = [
    *rows.mebibytes(LayerNorm, 256, (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)),
    LayerNorm(4 * 512, 1024),
]


@jit
def _layer_norm(
    x, weight, bias, out, rows, cols, x_step, out_step, eps, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES:
    tl.constexpr,
):  # fmt: skip
    col = tl.arange(0, COLS)[None, :]
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < rows) & (col < cols)
        v = tl.load(x + row * x_step + col, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        mean = tl.sum(v, 1)[:, None] / cols
        v = tl.where(col < cols, v - mean, 0.0)  # what pads the row must not count
        scale = 1 / tl.sqrt(tl.sum(v * v, 1)[:, None] / cols + eps)
        w = tl.load(weight + col, mask=col < cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
        b = tl.load(bias + col, mask=col < cols, other=0.0, eviction_policy="evict_last").to(tl.float32)
        tl.store(out + row * out_step + col, v * scale * w + b, mask=inside, eviction_policy="evict_first")


@jit
def _layer_norm_held(
    x, weight, bias, out, rows, cols, x_step, out_step, eps, COLS: tl.constexpr, PARTS: tl.constexpr, STAGES:
    tl.constexpr,
):  # fmt: skip
    """A long row, held in parts of COLS columns as they came from memory. Sums are relative to the mean of its first
    part, which comes early and is near enough to the row's that nothing cancels."""
    lane = tl.arange(0, COLS)
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0), num_stages=STAGES):
        held = load_parts(x + row * x_step, cols, 0.0, PARTS, COLS)
        near = tl.sum(held[0].to(tl.float32), 0) / tl.minimum(cols, COLS)
        sums = tl.zeros((COLS,), tl.float32)
        squares = tl.zeros((COLS,), tl.float32)
        for i in tl.static_range(PARTS):
            v = tl.where(inside(lane, cols, i, PARTS, COLS), again(held[i], near) - near, 0.0)
            sums += v
            squares += v * v
        shift = tl.sum(sums, 0) / cols
        scale = 1 / tl.sqrt(tl.sum(squares, 0) / cols - shift * shift + eps)
        mean = near + shift
        for i in tl.static_range(PARTS):
            here = inside(lane, cols, i, PARTS, COLS)
            col = i * COLS + lane
            w = tl.load(weight + col, mask=here, other=0.0, eviction_policy="evict_last").to(tl.float32)
            b = tl.load(bias + col, mask=here, other=0.0, eviction_policy="evict_last").to(tl.float32)
            y = (again(held[i], scale) - mean) * scale * w + b
            tl.store(out + row * out_step + col, y, mask=here, eviction_policy="evict_first")


@jit
def _layer_norm_twice(
    x, weight, bias, out, rows, cols, x_step, out_step, eps, COLS: tl.constexpr, STAGES: tl.constexpr
):
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
    plan: rows.Plan | None = None,
) -> torch.Tensor:
    if not usable(x):
        return native(x, weight, bias)
    out = torch.empty_like(x) if out is None else out
    flat, to = rows.flat(x), rows.flat(out)
    count, cols = flat.shape
    p = plan or rows.plan(KIND, cols, x.element_size())
    kernel = rows.choose(p, _layer_norm, _layer_norm_held, _layer_norm_twice)
    kernel[rows.grid(p, count, x.device)](
        flat, weight, bias, to, count, cols, flat.stride(0), to.stride(0), EPS, **rows.launch(p, cols)
    )
    return out


def inputs(op: LayerNorm, device: torch.device, generator: torch.Generator, pad: int = 0) -> tuple[torch.Tensor, ...]:
    vectors = (normal((op.cols,), op.dtype, device, generator) for _ in range(2))
    return rows.random_rows(op, device, generator, pad), *vectors


def native(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, EPS)


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return native(x.double(), weight.double(), bias.double())
