"""Attention of one new token over a paged KV cache, split along the keys, joined by whoever finishes last.

A program takes one key head of one sequence and a share of its pages, for all query heads of the group at once. Each
share leaves its own softmax (maximum, sum, weighted values); the last program of a (sequence, key head) to arrive at
its counter joins them, so no second kernel is launched. The number of shares is fixed by the launch, not by the lengths
(which are read on the device), so that one CUDA graph serves any length.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from chip.lab.kernels.plans import power_of_two
from chip.lab.kernels.triton import rows
from chip.lab.kernels.triton.decode_attention import reference as dense_reference
from chip.lab.kernels.triton.language import early, jit, overlapped, tl, usable
from chip.lab.measure.build import normal
from chip.ops.attention import Attention
from chip.types import ChipError

KIND = "attention"
COMPILED = False
PACKED = True
BASELINE = "gather + sdpa"
BENCH = [Attention(batch, 32, 8, 128, 1, length) for batch, length in ((1, 640), (8, 640), (32, 640), (8, 4096))]
PAGE = 64  # tokens of a page in `inputs`
LEAST_PAGE = 16  # the least that the tensor cores multiply
MOST_BLOCK = 64  # keys a step
WARPS, STAGES = 4, 3
PER_SM = 2  # programs an SM is to have
MOST_SPLITS = 64


@jit
def _paged(
    q, k, v, table, lengths, out, parts, tops, sums, arrived, group, kv_heads, dim, splits, scale, q_batch, q_head,
    page_step, head_step, table_step, GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    if OVERLAP:
        overlapped()
    pair = tl.program_id(0)
    batch = (pair // kv_heads).to(tl.int64)
    kv_head = (pair % kv_heads).to(tl.int64)
    split = tl.program_id(1)
    member = tl.arange(0, GROUP)
    d = tl.arange(0, DIM)
    mine = (member < group)[:, None] & (d < dim)[None, :]
    length = tl.load(lengths + batch)
    blocks = tl.cdiv(length, BLOCK)
    share = tl.maximum(tl.cdiv(blocks, splits), 1)
    used = tl.maximum(tl.cdiv(blocks, share), 1)  # shares that have keys: a short sequence leaves the others nothing
    if split >= used:
        return
    first = split * share
    end = tl.minimum(first + share, blocks)
    head = kv_head * group + member
    query = tl.load(q + batch * q_batch + head[:, None] * q_head + d[None, :], mask=mine, other=0.0)
    k += kv_head * head_step
    v += kv_head * head_step
    pages = table + batch * table_step
    top = tl.full((GROUP,), -float("inf"), tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    values = tl.zeros((GROUP, DIM), tl.float32)
    for block in tl.range(first, end, num_stages=STAGES):
        start = block * BLOCK
        page = tl.load(pages + start // PAGE).to(tl.int64)
        place = start % PAGE + tl.arange(0, BLOCK)
        there = start + tl.arange(0, BLOCK) < length
        at = page * page_step + place[:, None] * dim + d[None, :]
        inside = there[:, None] & (d < dim)[None, :]
        keys = tl.load(k + at, mask=inside, other=0.0)
        worth = tl.load(v + at, mask=inside, other=0.0)
        score = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        score = tl.where(there[None, :], score, -float("inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weight, 1)
        values = values * fade[:, None] + tl.dot(weight.to(worth.dtype), worth, input_precision="ieee")
        top = higher
    row = (batch * kv_heads + kv_head) * group + member
    if used == 1:
        tl.store(out + row[:, None] * dim + d[None, :], values / total[:, None], mask=mine)
    else:
        place = row * splits + split
        tl.store(parts + place[:, None] * dim + d[None, :], values, mask=mine)
        tl.store(tops + place, top, mask=member < group)
        tl.store(sums + place, total, mask=member < group)
        tl.debug_barrier()  # every thread has stored before one of them says so
        before = tl.atomic_add(arrived + pair, 1, sem="acq_rel", scope="gpu")
        if before == used - 1:
            _join(parts, tops, sums, out, row, member < group, dim, splits, used, GROUP, DIM, SPLITS)
            tl.store(arrived + pair, 0)  # ready for the next launch


@jit
def _join(
    parts, tops, sums, out, row, inside, dim, splits, used, GROUP: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr
):
    """The shares' softmaxes as one. Read past L1, which may hold what another launch left there."""
    d = tl.arange(0, DIM)
    split = tl.arange(0, SPLITS)
    place = row[:, None] * splits + split[None, :]
    there = inside[:, None] & (split < used)[None, :]
    top = tl.load(tops + place, mask=there, other=-float("inf"), cache_modifier=".cg")
    total = tl.load(sums + place, mask=there, other=0.0, cache_modifier=".cg")
    highest = tl.where(inside, tl.max(top, 1), 0.0)
    whole = tl.where(inside, tl.sum(tl.exp2(top - highest[:, None]) * total, 1), 1.0)
    joined = tl.zeros((GROUP, DIM), tl.float32)
    mine = inside[:, None] & (d < dim)[None, :]
    for i in range(used):
        at = row * splits + i
        fade = tl.exp2(tl.load(tops + at, mask=inside, other=0.0, cache_modifier=".cg") - highest)
        part = tl.load(parts + at[:, None] * dim + d[None, :], mask=mine, other=0.0, cache_modifier=".cg")
        joined += part * fade[:, None]
    tl.store(out + row[:, None] * dim + d[None, :], joined / whole[:, None], mask=mine)


@lru_cache
def splits_for(pairs: int, pages: int, sm_count: int) -> int:
    """Shares of each (sequence, key head): enough programs for the device, none without a page."""
    return max(1, min(MOST_SPLITS, pages, -(-PER_SM * sm_count // pairs)))


class Scratch:
    """Partial results and counters of one device, made once: a CUDA graph keeps their addresses."""

    held: dict[tuple[torch.device, int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    @classmethod
    def of(cls, device: torch.device, floats: int, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
        """(fp32 elements, counters at zero). Launches on one stream share them."""
        key = device, power_of_two(floats), power_of_two(pairs)
        if key not in cls.held:
            cls.held[key] = (
                torch.empty(key[1], dtype=torch.float32, device=device),
                torch.zeros(key[2], dtype=torch.int32, device=device),
            )
        return cls.held[key]


def run(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    table: torch.Tensor,
    lengths: torch.Tensor,
    out: torch.Tensor | None = None,
    splits: int = 0,
    overlap: bool = False,
) -> torch.Tensor:
    """q: batch x heads x dim; keys and values: pages x kv_heads x page_tokens x dim; table: batch x pages, int32."""
    if not usable(q):
        return native(q, keys, values, table, lengths)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    batch, heads, dim = q.shape
    _, kv_heads, page, _ = keys.shape
    check_pages(keys, values)
    group, pairs = heads // kv_heads, batch * kv_heads
    block = min(page, MOST_BLOCK)
    sm_count = rows.sm_count(q.device.index or 0) if q.is_cuda else 4
    splits = splits or splits_for(pairs, table.shape[1] * (page // block), sm_count)
    count = pairs * group * splits
    floats, arrived = Scratch.of(q.device, count * (dim + 2), pairs)
    parts, tops, sums = floats, floats[count * dim :], floats[count * (dim + 1) :]
    scale = math.log2(math.e) / math.sqrt(dim)  # exponentials are powers of two: one instruction each
    _paged[(pairs, splits)](
        q, keys, values, table, lengths, out, parts, tops, sums, arrived, group, kv_heads, dim, splits, scale,
        *q.stride()[:2], keys.stride(0), keys.stride(1), table.stride(0), max(16, power_of_two(group)),
        power_of_two(max(16, dim)), page, block, power_of_two(splits), STAGES, overlap, num_warps=WARPS,
        **early(overlap),
    )  # fmt: skip
    return out


def inputs(op: Attention, device: torch.device, generator: torch.Generator, pad: int = 0) -> tuple[torch.Tensor, ...]:
    """Sequences of up to kv_len tokens (the first has all), pages in a random order."""
    q = normal((op.batch, op.heads, op.head_dim), op.dtype, device, generator)
    keys, values, table = random_pages(op, device, generator)
    least = op.kv_len if device.type == "cuda" else max(1, op.kv_len // 2)  # timed at the length that is asked for
    lengths = torch.randint(least, op.kv_len + 1, (op.batch,), device=device, generator=generator, dtype=torch.int32)
    lengths[0] = op.kv_len
    return q, keys, values, table, lengths


def native(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Gather the pages, then PyTorch's own attention under a mask."""
    batch, heads, dim = q.shape
    k, v = gathered(keys, table), gathered(values, table)
    seen = torch.arange(k.shape[2], device=q.device)[None] < lengths[:, None]
    grouped = q.reshape(batch, k.shape[1], heads // k.shape[1], dim)
    return torch.nn.functional.scaled_dot_product_attention(grouped, k, v, seen[:, None, None]).reshape(q.shape)


def check_pages(keys: torch.Tensor, values: torch.Tensor) -> None:
    page, dim = keys.shape[2:]
    if page < LEAST_PAGE or page & (page - 1):
        raise ChipError(f"pages of {page} tokens: paged attention takes powers of two from {LEAST_PAGE} on")
    if keys.stride() != values.stride() or keys.stride()[2:] != (dim, 1):
        raise ChipError("pages of keys and values must be laid out alike, a head's tokens one after another")


def random_pages(op: Attention, device: torch.device, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    """Keys, values and the table of every sequence's pages, in a random order."""
    width = -(-op.kv_len // PAGE)
    shape = (op.batch * width + 1, op.kv_heads, PAGE, op.head_dim)
    keys, values = (normal(shape, op.dtype, device, generator) for _ in range(2))
    table = 1 + torch.randperm(op.batch * width, device=device, generator=generator).int().view(op.batch, width)
    return keys, values, table


def gathered(pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """sequences x kv_heads x tokens x dim."""
    _, kv_heads, page, dim = pages.shape
    found = pages.index_select(0, table.reshape(-1)).view(*table.shape, kv_heads, page, dim)
    return found.transpose(1, 2).reshape(len(table), kv_heads, -1, dim)


def reference(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    k, v = gathered(keys, table), gathered(values, table)
    found = [
        dense_reference(q[i : i + 1], k[i : i + 1, :, :n], v[i : i + 1, :, :n]) for i, n in enumerate(lengths.tolist())
    ]
    return torch.cat(found)
