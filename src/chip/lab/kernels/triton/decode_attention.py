"""Attention of one new token over a KV cache, split along the keys (flash decoding).

A program takes one key head of one sequence and a stretch of its keys, for all query heads of the group at once: keys
and values, which are all the traffic there is, are read once however many heads share them. Each stretch leaves its own
softmax (maximum, sum, weighted values); a second kernel joins them. The group is padded to 16 rows, the least that the
tensor cores multiply.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from chip.lab.kernels.plans import power_of_two
from chip.lab.kernels.triton import rows
from chip.lab.kernels.triton.language import jit, tl, usable
from chip.lab.measure.build import normal
from chip.ops.attention import Attention

KIND = "attention"
COMPILED = False  # torch.compile leaves this call to the same backend
PACKED = True  # the result is contiguous
BASELINE = "flash"
BENCH = [
    Attention(batch, heads, kv_heads, 128, 1, length)
    for batch, heads, kv_heads, length in (
        (1, 32, 8, 4096),
        (8, 32, 8, 4096),
        (64, 32, 8, 1024),
        (16, 32, 8, 16384),
        (8, 32, 32, 4096),
    )
]
BLOCK, WARPS, STAGES = 64, 4, 3
PER_SM = 3  # programs an SM holds at once: with heads of 128 each takes 70 KiB of its shared memory
LEAST_BLOCKS = 4  # a stretch shorter than this is not worth its share of the second kernel


@jit
def _stretch(
    q, k, v, out, tops, sums, group, kv_heads, dim, length, per_split, splits, scale, q_batch, q_head, k_batch,
    k_head, k_token, v_batch, v_head, v_token, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(0) // kv_heads).to(tl.int64)
    kv_head = tl.program_id(0) % kv_heads
    split = tl.program_id(1)
    member = tl.arange(0, GROUP)
    d = tl.arange(0, DIM)
    mine = (member < group)[:, None] & (d < dim)[None, :]
    head = kv_head * group + member
    query = tl.load(q + batch * q_batch + head[:, None] * q_head + d[None, :], mask=mine, other=0.0)
    k += batch * k_batch + kv_head * k_head
    v += batch * v_batch + kv_head * v_head
    top = tl.full((GROUP,), -float("inf"), tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    values = tl.zeros((GROUP, DIM), tl.float32)
    end = tl.minimum((split + 1) * per_split, length)
    for start in tl.range(split * per_split, end, BLOCK, num_stages=STAGES):
        token = start + tl.arange(0, BLOCK)
        there = token < end
        at = k + token[None, :].to(tl.int64) * k_token + d[:, None]
        keys = tl.load(at, mask=there[None, :] & (d < dim)[:, None], other=0.0)
        score = tl.where(there[None, :], tl.dot(query, keys, input_precision="ieee") * scale, -float("inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - higher[:, None])
        fade = tl.exp2(top - higher)
        total = total * fade + tl.sum(weight, 1)
        at = v + token[:, None].to(tl.int64) * v_token + d[None, :]
        worth = tl.load(at, mask=there[:, None] & (d < dim)[None, :], other=0.0)
        values = values * fade[:, None] + tl.dot(weight.to(worth.dtype), worth, input_precision="ieee")
        top = higher
    place = ((batch * kv_heads + kv_head) * group + member) * splits + split
    tl.store(out + place[:, None] * dim + d[None, :], values / total[:, None], mask=mine)
    if splits > 1:
        tl.store(tops + place, top, mask=member < group)
        tl.store(sums + place, total, mask=member < group)


@jit
def _join(parts, tops, sums, out, dim, splits, SPLITS: tl.constexpr, DIM: tl.constexpr):
    """Each stretch's answer counts by its share of the whole softmax."""
    head = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    d = tl.arange(0, DIM)
    there = split < splits
    top = tl.load(tops + head * splits + split, mask=there, other=-float("inf"))
    total = tl.load(sums + head * splits + split, mask=there, other=0.0)
    share = tl.exp2(top - tl.max(top, 0)) * total
    share = share / tl.sum(share, 0)
    at = parts + (head * splits + split)[:, None] * dim + d[None, :]
    part = tl.load(at, mask=there[:, None] & (d < dim)[None, :], other=0.0)
    tl.store(out + head * dim + d, tl.sum(part * share[:, None], 0), mask=d < dim)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@lru_cache
def splits_for(pairs: int, length: int, slots: int) -> int:
    """Stretches for each (sequence, key head), so that the last wave of programs is as full as the others: the fewest
    within a twentieth of the shortest time, counted in blocks of keys that a slot walks through."""
    blocks = ceil_div(length, BLOCK)

    def walked(splits: int) -> int:
        return ceil_div(pairs * splits, slots) * ceil_div(blocks, splits)

    choices = range(1, max(1, min(128, blocks // LEAST_BLOCKS)) + 1)
    best = min(map(walked, choices))
    return next(s for s in choices if walked(s) <= 1.05 * best)


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """q: batch x heads x dim; k and v: batch x kv_heads x length x dim; the result is as q."""
    if not usable(q):
        return native(q, k, v)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    batch, heads, dim = q.shape
    kv_heads, length = k.shape[1], k.shape[2]
    slots = PER_SM * rows.sm_count(q.device.index or 0) if q.is_cuda else 4
    splits = splits_for(batch * kv_heads, length, slots)
    per_split = ceil_div(ceil_div(length, BLOCK), splits) * BLOCK
    splits = ceil_div(length, per_split)  # rounding up may have left the last with nothing
    group, padded = heads // kv_heads, power_of_two(max(16, dim))
    tops = torch.empty((2, batch * heads * splits), dtype=torch.float32, device=q.device)
    parts = out if splits == 1 else torch.empty((batch * heads, splits, dim), dtype=torch.float32, device=q.device)
    scale = math.log2(math.e) / math.sqrt(dim)  # exponentials are powers of two: one instruction each
    _stretch[(batch * kv_heads, splits)](
        q, k, v, parts, tops[0], tops[1], group, kv_heads, dim, length, per_split, splits, scale, *q.stride()[:2],
        *k.stride()[:3], *v.stride()[:3], max(16, power_of_two(group)), padded, BLOCK, STAGES, num_warps=WARPS,
    )  # fmt: skip
    if splits > 1:
        _join[(batch * heads,)](parts, tops[0], tops[1], out, dim, splits, power_of_two(splits), padded, num_warps=4)
    return out


def inputs(op: Attention, device: torch.device, generator: torch.Generator, pad: int = 0) -> tuple[torch.Tensor, ...]:
    q = normal((op.batch, op.heads, op.head_dim), op.dtype, device, generator)
    cache = (op.batch, op.kv_heads, op.kv_len, op.head_dim + pad)
    k, v = (normal(cache, op.dtype, device, generator)[..., : op.head_dim] for _ in range(2))
    return q, k, v


def native(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    by_flash = q.is_cuda and q.dtype != torch.float32
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if by_flash else nullcontext():
        return F.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=q.shape[1] != k.shape[1])[:, :, 0]


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    many = q.shape[1] // k.shape[1]
    keys, values = (t.double().repeat_interleave(many, 1) for t in (k, v))
    scores = torch.einsum("bhd,bhld->bhl", q.double(), keys) / math.sqrt(q.shape[-1])
    return torch.einsum("bhl,bhld->bhd", torch.softmax(scores, -1), values)
