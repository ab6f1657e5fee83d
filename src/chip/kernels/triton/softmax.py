"""Softmax over each row: maximum, exponentials and their sum from registers, one read and one write."""

from __future__ import annotations

import torch

from chip.kernels.triton import rows
from chip.kernels.triton.language import exp, jit, tl, usable
from chip.kernels.triton.rows import again, inside, load_parts
from chip.ops.softmax import Softmax

KIND = "softmax"
BENCH = [*rows.mebibytes(Softmax, 256, (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)), Softmax(4 * 512, 1024)]


@jit
def _softmax(x, out, rows, cols, x_step, out_step, ROWS: tl.constexpr, COLS: tl.constexpr, STAGES: tl.constexpr):
    col = tl.arange(0, COLS)[None, :]
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < rows) & (col < cols)
        v = tl.load(x + row * x_step + col, mask=inside, other=-float("inf"), eviction_policy="evict_first").to(
            tl.float32
        )
        v = tl.where(row < rows, v, 0.0)  # rows past the end must not make -inf - -inf
        v = exp(v - tl.max(v, 1)[:, None])
        scale = 1 / tl.sum(v, 1)[:, None]
        tl.store(out + row * out_step + col, v * scale, mask=inside, eviction_policy="evict_first")


@jit
def _softmax_held(x, out, rows, cols, x_step, out_step, COLS: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr):
    """A long row, held in parts of COLS columns as they came from memory. Exponentials are taken twice, for the sum and
    for the result: in fp32 they would not fit."""
    lane = tl.arange(0, COLS)
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0), num_stages=STAGES):
        held = load_parts(x + row * x_step, cols, -float("inf"), PARTS, COLS)
        highest = held[0].to(tl.float32)
        for i in tl.static_range(1, PARTS):
            highest = tl.maximum(highest, held[i].to(tl.float32))
        top = tl.max(highest, 0)
        sums = tl.zeros((COLS,), tl.float32)
        for i in tl.static_range(PARTS):
            sums += exp(again(held[i], top) - top)
        scale = 1 / tl.sum(sums, 0)
        for i in tl.static_range(PARTS):
            here = inside(lane, cols, i, PARTS, COLS)
            col = i * COLS + lane
            y = exp(again(held[i], scale) - top) * scale
            tl.store(out + row * out_step + col, y, mask=here, eviction_policy="evict_first")


@jit
def _softmax_twice(x, out, rows, cols, x_step, out_step, COLS: tl.constexpr, STAGES: tl.constexpr):
    """A row too long for registers, in chunks: the sum so far is rescaled whenever a larger maximum turns up."""
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        top = -float("inf")
        total = 0.0
        for start in tl.range(0, cols, COLS, num_stages=STAGES):
            col = start + tl.arange(0, COLS)
            v = tl.load(x + row * x_step + col, mask=col < cols, other=-float("inf"), eviction_policy="evict_last")
            v = v.to(tl.float32)
            higher = tl.maximum(top, tl.max(v, 0))
            total = total * exp(top - higher) + tl.sum(exp(v - higher), 0)
            top = higher
        scale = 1 / total
        for start in tl.range(0, cols, COLS, num_stages=STAGES):
            col = start + tl.arange(0, COLS)
            v = tl.load(x + row * x_step + col, mask=col < cols, other=0.0, eviction_policy="evict_first")
            y = exp(v.to(tl.float32) - top) * scale
            tl.store(out + row * out_step + col, y, mask=col < cols, eviction_policy="evict_first")


def run(x: torch.Tensor, out: torch.Tensor | None = None, plan: rows.Plan | None = None) -> torch.Tensor:
    if not usable(x):
        return native(x)
    out = torch.empty_like(x) if out is None else out
    flat, to = rows.flat(x), rows.flat(out)
    count, cols = flat.shape
    p = plan or rows.plan(KIND, cols, x.element_size())
    kernel = rows.choose(p, _softmax, _softmax_held, _softmax_twice)
    kernel[rows.grid(p, count, x.device)](flat, to, count, cols, flat.stride(0), to.stride(0), **rows.launch(p, cols))
    return out


def inputs(op: Softmax, device: torch.device, generator: torch.Generator, pad: int = 0) -> tuple[torch.Tensor, ...]:
    return (rows.random_rows(op, device, generator, pad),)


def native(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def reference(x: torch.Tensor) -> torch.Tensor:
    return native(x.double())
