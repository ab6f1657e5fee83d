"""Causal attention of prompts, or chunks of them, over a paged KV cache: flash attention with grouped queries.

A program takes TILE queries of one head of one sequence and walks over the pages that they see, the softmax kept
online. Keys that all of them see need no mask; only the last pages, at the diagonal, are compared. Sequences of any
lengths are packed: a list of tiles, made on the host, says which queries a program takes, the longest walks first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from chip.lab.kernels.plans import power_of_two
from chip.lab.kernels.triton.language import early, jit, overlapped, tl, usable
from chip.lab.kernels.triton.paged_decode_attention import (
    LEAST_PAGE as LEAST_PAGE,
)
from chip.lab.kernels.triton.paged_decode_attention import (
    check_pages,
    gathered,
    random_pages,
)
from chip.lab.measure.build import normal
from chip.ops.attention import Attention

KIND = "attention"
COMPILED = False
PACKED = True
BASELINE = "gather + flash"
BENCH = [Attention(batch, 32, 8, 128, n, n) for batch, n in ((8, 512), (1, 2048), (1, 4096), (1, 8192))]
BENCH += [Attention(8, 32, 8, 64, 1024, 1024)]
TILE = 128  # queries a program takes
MOST_BLOCK = 64  # keys a step
WARPS, STAGES = 8, 3
WIDE, WIDE_WARPS = 128, 4  # of such heads a warpgroup multiplies more at a time: 1 to 9 % faster on an H200


def tiles_of(chunks: Sequence[tuple[int, int, int]]) -> list[int]:
    """(row of the first query, queries, tokens before the first, sequence) of each tile, flat. A chunk is (row of its
    first query, its queries, tokens before them); sequences are counted from 0 within the chunks."""
    found = []
    for sequence, (row, new, past) in enumerate(chunks):
        found += [(row + i, min(TILE, new - i), past + i, sequence) for i in range(0, new, TILE)]
    return [n for tile in sorted(found, key=lambda t: -(t[2] + t[1])) for n in tile]


@jit
def _step(
    query, top, total, values, k, v, pages, start, place, dim, scale, page_step, DIM: tl.constexpr,
    PAGE: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, DIM)
    page = tl.load(pages + start // PAGE).to(tl.int64)
    token = start % PAGE + tl.arange(0, BLOCK)
    at = page * page_step + token[:, None] * dim + d[None, :]
    if WHOLE:  # past the end of a sequence a page holds old, finite numbers, and their weight is zero
        keys = tl.load(k + at)
        worth = tl.load(v + at)
    else:
        keys = tl.load(k + at, mask=(d < dim)[None, :], other=0.0)
        worth = tl.load(v + at, mask=(d < dim)[None, :], other=0.0)
    score = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    if MASKED:
        score = tl.where(place[:, None] >= (start + tl.arange(0, BLOCK))[None, :], score, -float("inf"))
    higher = tl.maximum(top, tl.max(score, 1))
    weight = tl.exp2(score - higher[:, None])
    fade = tl.exp2(top - higher)
    total = total * fade + tl.sum(weight, 1)
    values = tl.dot(weight.to(worth.dtype), worth, values * fade[:, None], input_precision="ieee")
    return higher, total, values


@jit
def _prefill(
    q, k, v, table, tiles, out, group, dim, scale, q_row, q_head, out_row, out_head, page_step, head_step, table_step,
    TILE: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
    STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        overlapped()
    tile = tiles + tl.program_id(1) * 4
    row = tl.load(tile).to(tl.int64)
    count = tl.load(tile + 1)
    past = tl.load(tile + 2)
    sequence = tl.load(tile + 3).to(tl.int64)
    head = tl.program_id(0)
    i = tl.arange(0, TILE)
    d = tl.arange(0, DIM)
    inside = (i < count)[:, None] & (d < dim)[None, :]
    rows = row + i.to(tl.int64)
    query = tl.load(q + rows[:, None] * q_row + head * q_head + d[None, :], mask=inside, other=0.0)
    k += (head // group).to(tl.int64) * head_step
    v += (head // group).to(tl.int64) * head_step
    pages = table + sequence * table_step
    place = past + i  # of each query in its sequence: it sees the keys up to its own
    top = tl.full((TILE,), -float("inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    values = tl.zeros((TILE, DIM), tl.float32)
    unmasked = (past + 1) // BLOCK * BLOCK  # keys that every query sees, in whole blocks
    for start in tl.range(0, unmasked, BLOCK, num_stages=STAGES):
        top, total, values = _step(query, top, total, values, k, v, pages, start, place, dim, scale, page_step,
                                   DIM, PAGE, BLOCK, False, WHOLE)  # fmt: skip
    for start in tl.range(unmasked, past + count, BLOCK, num_stages=STAGES):
        top, total, values = _step(query, top, total, values, k, v, pages, start, place, dim, scale, page_step,
                                   DIM, PAGE, BLOCK, True, WHOLE)  # fmt: skip
    to = out + rows[:, None] * out_row + head * out_head + d[None, :]
    tl.store(to, values / total[:, None], mask=inside)


def launch(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    tiles: torch.Tensor,
    out: torch.Tensor,
    warps: int = 0,
    stages: int = STAGES,
    overlap: bool = False,
) -> None:
    """q and out: tokens x heads x dim; tiles: see `tiles_of`, int32, one row each; table: a row for each sequence."""
    _, heads, dim = q.shape
    _, kv_heads, page, _ = keys.shape
    check_pages(keys, values)
    scale = math.log2(math.e) / math.sqrt(dim)
    padded = power_of_two(max(16, dim))
    _prefill[(heads, len(tiles))](
        q, keys, values, table, tiles, out, heads // kv_heads, dim, scale, q.stride(0), q.stride(1), out.stride(0),
        out.stride(1), keys.stride(0), keys.stride(1), table.stride(0), TILE, padded, page, min(page, MOST_BLOCK),
        padded == dim, stages, overlap, num_warps=warps or (WIDE_WARPS if dim >= WIDE else WARPS), **early(overlap),
    )  # fmt: skip


def run(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    tiles: torch.Tensor,
    out: torch.Tensor | None = None,
    overlap: bool = False,
) -> torch.Tensor:
    """q: batch x q_len x heads x dim: the last q_len tokens of sequences of `lengths` tokens in all (on the host)."""
    if not usable(q):
        return native(q, keys, values, table, lengths, tiles)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    heads, dim = q.shape[2:]
    launch(q.view(-1, heads, dim), keys, values, table, tiles, out.view(-1, heads, dim), overlap=overlap)
    return out


def cases(draw: Any, count: int, small: bool, dtypes: Sequence[str]) -> list[Attention]:
    """What `chip kernels check` asks: whole prompts and chunks after others, lengths that fill no tile or page."""
    found = []
    for i in range(count + 4):
        kv_heads, dtype = draw.choice((1, 2, 4)), draw.choice(dtypes[:2])
        new = draw.choice((1, 2, 63, 64, 65, 127, 128, 129, draw.randint(1, 200 if small else 700)))
        past = draw.choice((0, 0, 1, 63, 64, draw.randint(0, 150 if small else 900))) if i else 0
        dim = draw.choice((64, 128) if i % 3 else (16, 80, 96))
        found.append(Attention(draw.randint(1, 3), kv_heads * draw.choice((1, 2, 4, 7)), kv_heads, dim, new,
                               new + past, dtype=dtype))  # fmt: skip
    return found


def inputs(op: Attention, device: torch.device, generator: torch.Generator, pad: int = 0) -> tuple[torch.Tensor, ...]:
    q = normal((op.batch, op.q_len, op.heads, op.head_dim), op.dtype, device, generator)
    keys, values, table = random_pages(op, device, generator)
    chunks = [(i * op.q_len, op.q_len, op.kv_len - op.q_len) for i in range(op.batch)]
    tiles = torch.tensor(tiles_of(chunks), dtype=torch.int32, device=device).view(-1, 4)
    return q, keys, values, table, torch.full((op.batch,), op.kv_len, dtype=torch.int32), tiles


def native(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    tiles: torch.Tensor | None = None,
) -> torch.Tensor:
    """PyTorch's flash backend where there is one, over the gathered pages."""
    length, q_len = int(lengths[0]), q.shape[1]
    k, v = (gathered(t, table)[:, :, :length] for t in (keys, values))
    query, grouped = q.transpose(1, 2), q.shape[2] != keys.shape[1]
    whole = length == q_len
    mask = None if whole else torch.ones(q_len, length, dtype=torch.bool, device=q.device).tril(length - q_len)
    by_flash = q.is_cuda and q.dtype != torch.float32 and whole
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if by_flash else nullcontext():
        return F.scaled_dot_product_attention(query, k, v, mask, is_causal=whole, enable_gqa=grouped).transpose(1, 2)


def reference(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    tiles: torch.Tensor | None = None,
) -> torch.Tensor:
    length, q_len, many = int(lengths[0]), q.shape[1], q.shape[2] // keys.shape[1]
    k, v = (gathered(t.double(), table)[:, :, :length].repeat_interleave(many, 1) for t in (keys, values))
    scores = torch.einsum("bqhd,bhld->bhql", q.double(), k) / math.sqrt(q.shape[-1])
    seen = torch.ones(q_len, length, dtype=torch.bool, device=q.device).tril(length - q_len)
    return torch.einsum("bhql,bhld->bqhd", torch.softmax(scores.masked_fill(~seen, -torch.inf), -1), v)
