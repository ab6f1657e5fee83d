"""y = x W^T (+ bias) for few rows of x, where the time is that of reading W once; or silu(gate) * up of such a product.

W's rows are the rows of the tensor cores' tile and the tokens its columns, so that even one token wastes no bandwidth.
A program takes ROWS rows of W and walks along k, the loads STAGES tiles ahead. With `gated`, W holds gate above up: a
program takes the same rows of both, and the product never travels to memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from chip.lab.kernels.plans import power_of_two
from chip.lab.kernels.triton import rows
from chip.lab.kernels.triton.language import early, exp, jit, overlapped, tl, usable
from chip.lab.measure.build import normal
from chip.ops.linear import Linear
from chip.types import ChipError

KIND = "linear"
COMPILED = False
MOST_TOKENS = 64
DEPTH = 128  # elements of k at a time: 256 bytes of a row
WARPS, STAGES = 4, 5
SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))  # n, k: Llama-3.1-8B
BENCH = [Linear(m, n, k) for m in (1, 8, 32, 64) for n, k in SHAPES]


@jit
def _tile(x, w, row, inside, n, m, k, w_step, x_step, ROWS: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr,
          STAGES: tl.constexpr):  # fmt: skip
    """ROWS x TOKENS of W x^T in fp32."""
    token = tl.arange(0, TOKENS)
    depth = tl.arange(0, DEPTH)
    sums = tl.zeros((ROWS, TOKENS), tl.float32)
    for start in tl.range(0, k, DEPTH, num_stages=STAGES):
        here = start + depth
        a = tl.load(w + row[:, None] * w_step + here[None, :], mask=inside[:, None] & (here < k)[None, :], other=0.0,
                    eviction_policy="evict_first")  # fmt: skip
        b = tl.load(x + token[:, None] * x_step + here[None, :], mask=(token < m)[:, None] & (here < k)[None, :],
                    other=0.0)  # fmt: skip
        sums = tl.dot(a, tl.trans(b), sums, input_precision="ieee")
    return sums


@jit
def _skinny(
    x, w, bias, out, m, n, k, x_step, w_step, out_step, ROWS: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr,
    GATED: tl.constexpr, BIAS: tl.constexpr, OVERLAP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        overlapped()
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    token = tl.arange(0, TOKENS)
    inside = row < n
    y = _tile(x, w, row, inside, n, m, k, w_step, x_step, ROWS, TOKENS, DEPTH, STAGES)
    if BIAS:
        y += tl.load(bias + row, mask=inside, other=0.0).to(tl.float32)[:, None]
    if GATED:
        up = _tile(x, w, n + row, inside, n, m, k, w_step, x_step, ROWS, TOKENS, DEPTH, STAGES)
        if BIAS:
            up += tl.load(bias + n + row, mask=inside, other=0.0).to(tl.float32)[:, None]
        y = y / (1 + exp(-y)) * up
    to = out + token[None, :].to(tl.int64) * out_step + row[:, None]
    tl.store(to, y, mask=inside[:, None] & (token < m)[None, :])


def run(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    gated: bool = False,
    overlap: bool = False,
) -> torch.Tensor:
    """x: m x k, m at most 64; w: n x k, or gate above up (2 n x k)."""
    (m, k), n = x.shape, len(w) // 2 if gated else len(w)
    if not usable(x):
        return native(x, w, bias, gated)
    if m > MOST_TOKENS:
        raise ChipError(f"skinny_gemm takes up to {MOST_TOKENS} rows, not {m}")
    out = torch.empty((m, n), dtype=x.dtype, device=x.device) if out is None else out
    sm_count = rows.sm_count(x.device.index or 0) if x.is_cuda else 4
    tile = 16 if n < 64 * sm_count else 32  # rows of W a program: two programs an SM, or more
    _skinny[(-(-n // tile),)](
        x, w, x if bias is None else bias, out, m, n, k, x.stride(0), w.stride(0), out.stride(0), tile,
        max(16, power_of_two(m)), DEPTH, gated, bias is not None, overlap, STAGES if m <= 32 else STAGES - 1,
        num_warps=WARPS, **early(overlap),
    )  # fmt: skip
    return out


def cases(draw: Any, count: int, small: bool, dtypes: Sequence[str]) -> list[Linear]:
    most = 300 if small else 3000
    shapes = [(1, 1, 8), (1, 16, 128), (8, 33, 200), (64, 64, 128), (17, 100, 8), (33, 257, 136)]
    shapes += [(draw.randint(1, 64), draw.randint(1, most), draw.randint(1, most)) for _ in range(count)]
    return [Linear(m, n, k, dtype) for m, n, k in shapes for dtype in dtypes[:2]]


def inputs(op: Linear, device: torch.device, generator: torch.Generator, pad: int = 0) -> tuple[torch.Tensor, ...]:
    x, w = (normal((rows, op.k + pad), op.dtype, device, generator)[:, : op.k] for rows in (op.m, op.n))
    return (x, w, normal((op.n,), op.dtype, device, generator)) if op.bias else (x, w)


def native(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, gated: bool = False) -> torch.Tensor:
    y = F.linear(x, w, bias)
    if not gated:
        return y
    gate, up = y.chunk(2, -1)
    return F.silu(gate) * up


def reference(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None, gated: bool = False) -> torch.Tensor:
    return native(x.double(), w.double(), None if bias is None else bias.double(), gated)
