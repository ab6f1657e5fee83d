"""Softmax over each row: maximum, exponentials and their sum from registers, one read and one write.

Maxima are kept as powers of two (times LOG2E): then an exponential is one multiply-add and one instruction of the
special function unit, which long rows are short of.
"""

from __future__ import annotations

import torch

from chip.lab.kernels import plans
from chip.lab.kernels.triton import rows
from chip.lab.kernels.triton.language import exp2, jit, larger, tl, usable
from chip.lab.kernels.triton.rows import again, first_of, grouped, inside, load_parts
from chip.ops.elementwise import Elementwise, Softmax

KIND = "softmax"
LOG2E = tl.constexpr(1.4426950408889634) if tl else 0.0
LOWEST = tl.constexpr(-3.4028234e38) if tl else 0.0  # a maximum to start from: -inf less -inf would be NaN
BENCH = [*rows.mebibytes(Softmax, 256, (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)), Softmax(4 * 512, 1024)]


@jit
def _softmax(
    x, out, rows, cols, x_step, out_step, ROWS: tl.constexpr, COLS: tl.constexpr, EVICT: tl.constexpr,
    CACHE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    col = tl.arange(0, COLS)[None, :]
    for block in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=STAGES):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        inside = (row < rows) & (col < cols)
        at = x + row * x_step + col
        v = tl.load(at, mask=inside, other=-float("inf"), eviction_policy=EVICT, cache_modifier=CACHE).to(tl.float32)
        v = tl.where(row < rows, v, 0.0)  # rows past the end must not make -inf - -inf
        v = exp2(v * LOG2E - tl.max(v, 1)[:, None] * LOG2E)
        scale = 1 / tl.sum(v, 1)[:, None]
        to = out + row * out_step + col
        tl.store(to, v * scale, mask=inside, eviction_policy=EVICT, cache_modifier=CACHE)


@jit
def _softmax_held(
    x, out, rows, cols, x_step, out_step, COLS: tl.constexpr, PARTS: tl.constexpr, FETCHED: tl.constexpr,
    KEPT: tl.constexpr, EVICT: tl.constexpr, CACHE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A long row, held in parts of COLS columns as they came from memory. Their maximum is taken two numbers at a time.
    Exponentials take the place of what they were made from, rounded to its type: in fp32 they would not fit, and taken
    twice they would cost more than the second rounding, which leaves the result within a unit of its last place. Their
    sum is of the unrounded ones. One part waits for the other, or the compiler would have them all in fp32 at once."""
    lane = tl.arange(0, COLS)
    GROUP: tl.constexpr = 128 // x.dtype.element_ty.primitive_bitwidth
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0), num_stages=STAGES):
        held = load_parts(x + row * x_step, cols, -float("inf"), PARTS, COLS, EVICT, CACHE)
        most = held[0]
        for i in tl.static_range(1, PARTS):
            most = larger(most, held[i])
        top = tl.max(most.to(tl.float32), 0) * LOG2E
        sums = tl.zeros((COLS // GROUP,), tl.float32)
        kept = ()
        for i in tl.static_range(PARTS):
            e = exp2(again(grouped(held[i], GROUP), sums[:, None]) * LOG2E - top)
            sums += tl.sum(e, 1)
            kept += (e.to(x.dtype.element_ty),)  # type: ignore
        scale = 1 / tl.sum(sums, 0)
        done = tl.zeros((COLS // GROUP,), tl.float32) + scale
        for i in tl.static_range(PARTS):
            here = inside(lane, cols, i, PARTS, COLS)
            to = out + row * out_step + i * COLS + lane
            y = again(kept[i], done[:, None]) * scale
            done = first_of(y, GROUP)
            tl.store(to, tl.reshape(y, (COLS,)), mask=here, eviction_policy=EVICT, cache_modifier=CACHE)


@jit
def joined(v, tops, sums):
    """Maximum and sum of each group with more of its elements: the sum so far is rescaled to the new maximum."""
    higher = tl.maximum(tops, tl.max(v, 1) * LOG2E)
    return higher, sums * exp2(tops - higher) + tl.sum(exp2(v * LOG2E - higher[:, None]), 1)


@jit
def again_at(start, cols, COLS: tl.constexpr, BACK: tl.constexpr):
    """Where the second reading is when the first was at `start`; backwards, what was read last is read again first."""
    return (tl.cdiv(cols, COLS) - 1) * COLS - start if BACK else start


@jit
def _softmax_twice(x, out, rows, cols, x_step, out_step, COLS: tl.constexpr, BACK: tl.constexpr, STAGES: tl.constexpr):
    """A row in chunks. Each 16 bytes of a thread have a maximum and a sum of their own, so that a chunk is summed when
    it arrives; then the row is read again, from L1 and L2, and its exponentials are computed again."""
    lane = tl.arange(0, COLS)
    GROUP: tl.constexpr = 128 // x.dtype.element_ty.primitive_bitwidth
    for row in tl.range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        tops = tl.full((COLS // GROUP,), LOWEST, tl.float32)
        sums = tl.zeros((COLS // GROUP,), tl.float32)
        for start in tl.range(0, cols, COLS, num_stages=STAGES):
            col = start + lane
            v = tl.load(x + row * x_step + col, mask=col < cols, other=-float("inf"), eviction_policy="evict_last")
            tops, sums = joined(grouped(v, GROUP).to(tl.float32), tops, sums)
        top = tl.max(tops, 0)
        scale = 1 / tl.sum(sums * exp2(tops - top), 0)
        for start in tl.range(0, cols, COLS, num_stages=STAGES):
            col = again_at(start, cols, COLS, BACK) + lane
            v = tl.load(x + row * x_step + col, mask=col < cols, other=0.0, eviction_policy="evict_first")
            y = exp2(v.to(tl.float32) * LOG2E - top) * scale
            tl.store(out + row * out_step + col, y, mask=col < cols, eviction_policy="evict_first")


def run(x: torch.Tensor, out: torch.Tensor | None = None, plan: plans.LaunchPlan | None = None) -> torch.Tensor:
    if not usable(x):
        return native(x)
    out = torch.empty_like(x) if out is None else out
    flat, to = rows.flat(x), rows.flat(out)
    count, cols = flat.shape
    p = plan or plans.plan(KIND, cols, x.element_size())
    kernel = rows.choose(p, _softmax, _softmax_held, _softmax_twice)
    more = {"BACK": p.back} if kernel is _softmax_twice else {}
    kernel[rows.grid(p, count, x.device)](
        flat, to, count, cols, flat.stride(0), to.stride(0), **rows.launch(p, cols), **more
    )
    return out


def inputs(op: Elementwise, device: torch.device, generator: torch.Generator, pad: int = 0) -> tuple[torch.Tensor, ...]:
    return (rows.random_rows(op, device, generator, pad),)


def native(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def reference(x: torch.Tensor) -> torch.Tensor:
    return native(x.double())
