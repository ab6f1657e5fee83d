"""Rotary positions and the write to the paged KV cache in one kernel, with the norm of each head where a model has it.

Reads the merged projection (tokens x (query heads + 2 key heads) x head_dim) once: queries go out turned to their
positions, keys and values straight to their pages. A program takes one token and one key head with the query heads that
share it. A slot is page x page_tokens + place in it; pages are pages x kv_heads x page_tokens x head_dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from chip.lab.kernels.plans import power_of_two
from chip.lab.kernels.triton.language import early, jit, overlapped, tl, usable
from chip.lab.measure.build import normal
from chip.ops.moves import Rope

KIND = "rope"
COMPILED = False
PACKED = True
BENCH = [Rope(1, 40, 128), Rope(32, 40, 128), Rope(4096, 40, 128)]
EPS = 1e-6


@jit
def _turned(x, low_at, half, heads, step, norm, cos, sin, eps, HEADS: tl.constexpr, HALF: tl.constexpr,
            NORM: tl.constexpr):  # fmt: skip
    """Halves of `heads` heads, normed and turned, as fp32."""
    head = tl.arange(0, HEADS)[:, None]
    col = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (col < half)
    at = x + low_at + head * step + col
    low = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        mean = (tl.sum(low * low, 1) + tl.sum(high * high, 1)) / (2 * half)
        scale = (1 / tl.sqrt(mean + eps))[:, None]
        low = low * scale * tl.load(norm + col, mask=col < half, other=0.0).to(tl.float32)
        high = high * scale * tl.load(norm + half + col, mask=col < half, other=0.0).to(tl.float32)
    return low * cos - high * sin, high * cos + low * sin


@jit
def _rope_store(
    qkv, q_norm, k_norm, cos, sin, positions, slots, q_out, keys, values, row_step, half, group, kv_heads, page_tokens,
    page_step, table_step, eps, GROUP: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        overlapped()
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    dim = 2 * half
    heads = group * kv_heads
    row = qkv + token * row_step
    col = tl.arange(0, HALF)[None, :]
    position = tl.load(positions + token).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    c = tl.load(cos + position * table_step + col, mask=col < half, other=0.0)
    s = tl.load(sin + position * table_step + col, mask=col < half, other=0.0)
    q_low, q_high = _turned(row, kv_head * group * dim, half, group, dim, q_norm, c, s, eps, GROUP, HALF, NORM)
    k_low, k_high = _turned(row, (heads + kv_head) * dim, half, 1, dim, k_norm, c, s, eps, 1, HALF, NORM)
    v_at = row + (heads + kv_heads + kv_head) * dim + col
    v_low = tl.load(v_at, mask=col < half, other=0.0)
    v_high = tl.load(v_at + half, mask=col < half, other=0.0)
    head = tl.arange(0, GROUP)[:, None]
    inside = (head < group) & (col < half)
    to = q_out + (token * heads + kv_head * group + head) * dim + col
    tl.store(to, q_low, mask=inside)
    tl.store(to + half, q_high, mask=inside)
    at = (slot // page_tokens) * page_step + (kv_head * page_tokens + slot % page_tokens) * dim + col
    tl.store(keys + at, k_low, mask=col < half)
    tl.store(keys + at + half, k_high, mask=col < half)
    tl.store(values + at, v_low, mask=col < half)
    tl.store(values + at + half, v_high, mask=col < half)


def run(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    like: torch.Tensor,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    eps: float = EPS,
    overlap: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(queries, keys, values). `like`: pages of the shape that keys and values go to, used where `out` is None.

    cos and sin are positions x head_dim / 2 in fp32. `overlap`: the next kernel may start meanwhile, and this one
    before the last has finished.
    """
    pages = like if out is None else out[1]
    _, kv_heads, page_tokens, dim = pages.shape
    tokens, group = len(qkv), qkv.shape[1] // dim // kv_heads - 2
    if not usable(qkv):
        return native(qkv, cos, sin, positions, slots, like, q_norm, k_norm, eps)
    if out is None:
        q = torch.empty((tokens, group * kv_heads, dim), dtype=qkv.dtype, device=qkv.device)
        out = q, torch.zeros_like(like), torch.zeros_like(like)
    q, keys, values = out
    norm = q_norm is not None
    _rope_store[(tokens, kv_heads)](
        qkv, q_norm if norm else qkv, k_norm if norm else qkv, cos, sin, positions, slots, q, keys, values,
        qkv.stride(0), dim // 2, group, kv_heads, page_tokens, keys.stride(0), cos.stride(0), eps, power_of_two(group),
        power_of_two(dim // 2), norm, overlap, num_warps=1 if tokens > 256 else 2, **early(overlap),
    )  # fmt: skip
    return out


def cases(draw: Any, count: int, small: bool, dtypes: Sequence[str]) -> list[Rope]:
    """Few tokens for the interpreter, which takes a millisecond for each and head."""
    most = 12 if small else 300
    return [
        Rope(draw.randint(1, most), draw.randint(2, 24), 2 * draw.randint(1, 64), draw.choice(dtypes))
        for _ in range(count + 4)
    ]


def inputs(op: Rope, device: torch.device, generator: torch.Generator, pad: int = 0) -> tuple[torch.Tensor, ...]:
    """Every slot of the pages is written once, in an order of its own."""
    kv_heads = max(1, op.heads // 5)
    group = max(1, op.heads // kv_heads - 1)
    width = (group + 2) * kv_heads * op.head_dim
    qkv = normal((op.rows, width + pad), op.dtype, device, generator)[:, :width]
    angles = torch.rand((op.rows + 7, op.head_dim // 2), device=device, generator=generator) * 6
    positions = torch.randint(0, op.rows + 7, (op.rows,), device=device, generator=generator, dtype=torch.int32)
    slots = torch.randperm(op.rows, device=device, generator=generator).int()
    page_tokens = next(n for n in (16, 4, 1) if op.rows % n == 0)
    shape = (op.rows // page_tokens, kv_heads, page_tokens, op.head_dim)
    like = torch.zeros(shape, dtype=qkv.dtype, device=device)
    norms = [normal((op.head_dim,), op.dtype, device, generator) for _ in range(2)]
    return qkv, angles.cos(), angles.sin(), positions, slots, like, *norms


def native(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    like: torch.Tensor,
    q_norm: torch.Tensor | None = None,
    k_norm: torch.Tensor | None = None,
    eps: float = EPS,
    pages: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same by PyTorch, rounded to the tensors' own type after every step, into `pages` or new ones."""
    _, kv_heads, page_tokens, dim = like.shape
    keys, values = pages or (torch.zeros_like(like, dtype=qkv.dtype), torch.zeros_like(like, dtype=qkv.dtype))
    q, k, v = qkv.view(len(qkv), -1, dim).split([qkv.shape[1] // dim - 2 * kv_heads, kv_heads, kv_heads], 1)
    if q_norm is not None and k_norm is not None:
        q, k = (torch.nn.functional.rms_norm(x, (dim,), w, eps) for x, w in ((q, q_norm), (k, k_norm)))
    c, s = (t.index_select(0, positions)[:, None].to(qkv.dtype) for t in (cos, sin))
    page, place = slots // page_tokens, slots % page_tokens
    keys[page, :, place] = _turn(k, c, s)
    values[page, :, place] = v
    return _turn(q, c, s), keys, values


def _turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def reference(qkv: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    cos, sin, positions, slots, like, q_norm, k_norm = rest
    return native(qkv.double(), cos.double(), sin.double(), positions, slots, like, q_norm.double(), k_norm.double())
