"""Rotary positions of queries and keys in one kernel: a token's angles are read once for all of its heads.

Tensors are as a projection leaves them: tokens x heads x head_dim, cosines and sines tokens x head_dim. A program takes
one token: its halves (a, b) become (a cos - b sin, b cos + a sin), as HF's rotate_half has it.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from chip.lab.kernels import plans
from chip.lab.kernels.plans import power_of_two
from chip.lab.kernels.triton.language import jit, tl, usable
from chip.lab.measure.build import normal
from chip.lab.measure.build.moves import rotate_half
from chip.ops.moves import Rope

KIND = "rope"
BENCH = [Rope(4096, 40, 128), Rope(16384, 40, 128), Rope(16384, 36, 64)]
RULE = plans.LaunchPlan()
CANDIDATES = [
    replace(RULE, warps=warps, evict=evict, cache=cache)
    for warps in (1, 2, 4, 8)
    for evict, cache in (("evict_first", ""), ("", ""), ("", ".cg"))
]


@jit
def _halves(x, heads, half, step, HEADS: tl.constexpr, HALF: tl.constexpr, EVICT: tl.constexpr, CACHE: tl.constexpr):
    head = tl.arange(0, HEADS)[:, None]
    col = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (col < half)
    at = x + head * step + col
    low = tl.load(at, mask=inside, other=0.0, eviction_policy=EVICT, cache_modifier=CACHE)
    high = tl.load(at + half, mask=inside, other=0.0, eviction_policy=EVICT, cache_modifier=CACHE)
    return low.to(tl.float32), high.to(tl.float32)


@jit
def _store(
    out, low, high, heads, half, step, low_cos, high_cos, low_sin, high_sin, HEADS: tl.constexpr, HALF: tl.constexpr,
    EVICT: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    head = tl.arange(0, HEADS)[:, None]
    col = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (col < half)
    to = out + head * step + col
    y = low * low_cos - high * low_sin
    z = high * high_cos + low * high_sin
    tl.store(to, y, mask=inside, eviction_policy=EVICT, cache_modifier=CACHE)
    tl.store(to + half, z, mask=inside, eviction_policy=EVICT, cache_modifier=CACHE)


@jit
def _rope(
    q, k, cos, sin, q_out, k_out, half, q_heads, k_heads, q_token, q_head, k_token, k_head, qo_token, qo_head,
    ko_token, ko_head, cos_token, sin_token, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HALF: tl.constexpr,
    EVICT: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, HALF)[None, :]
    c = cos + token * cos_token + col
    s = sin + token * sin_token + col
    # all that is read is asked for before anything is written: no load overtakes a store that it might depend on
    q_low, q_high = _halves(q + token * q_token, q_heads, half, q_head, Q_HEADS, HALF, EVICT, CACHE)
    k_low, k_high = _halves(k + token * k_token, k_heads, half, k_head, K_HEADS, HALF, EVICT, CACHE)
    low_cos = tl.load(c, mask=col < half, other=0.0).to(tl.float32)
    high_cos = tl.load(c + half, mask=col < half, other=0.0).to(tl.float32)
    low_sin = tl.load(s, mask=col < half, other=0.0).to(tl.float32)
    high_sin = tl.load(s + half, mask=col < half, other=0.0).to(tl.float32)
    _store(
        q_out + token * qo_token,
        q_low,
        q_high,
        q_heads,
        half,
        qo_head,
        low_cos,
        high_cos,
        low_sin,
        high_sin,
        Q_HEADS,
        HALF,
        EVICT,
        CACHE,
    )
    _store(k_out + token * ko_token, k_low, k_high, k_heads, half, ko_head, low_cos, high_cos, low_sin, high_sin,
           K_HEADS, HALF, EVICT, CACHE)  # fmt: skip


def key(op: Rope) -> int:
    """What a plan of `tune` holds for."""
    return op.head_dim


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    plan: plans.LaunchPlan | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if not usable(q):
        return native(q, k, cos, sin)
    q_out, k_out = out or (torch.empty_like(q), torch.empty_like(k))
    tokens, q_heads, dim = q.shape
    steps = [s for t in (q, k, q_out, k_out) for s in t.stride()[:2]]
    shape = power_of_two(q_heads), power_of_two(k.shape[1]), power_of_two(dim // 2)
    p = plan or plans.tuned(KIND, dim) or RULE
    _rope[(tokens,)](
        q, k, cos, sin, q_out, k_out, dim // 2, q_heads, k.shape[1], *steps, cos.stride(0), sin.stride(0), *shape,
        p.evict, p.cache, num_warps=p.warps,
    )  # fmt: skip
    return q_out, k_out


def inputs(op: Rope, device: torch.device, generator: torch.Generator, pad: int = 0) -> tuple[torch.Tensor, ...]:
    keys = max(1, op.heads // 5)  # as `chip.lab.measure.build.moves`: grouped-query attention, 4 : 1
    shapes = ((op.heads - keys, op.head_dim + pad), (keys, op.head_dim + pad), (op.head_dim,), (op.head_dim,))
    drawn = [normal((op.rows, *shape), op.dtype, device, generator) for shape in shapes]
    return drawn[0][..., : op.head_dim], drawn[1][..., : op.head_dim], drawn[2], drawn[3]


def native(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    c, s = cos[:, None], sin[:, None]
    return q * c + rotate_half(q) * s, k * c + rotate_half(k) * s


def reference(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return native(q.double(), k.double(), cos.double(), sin.double())
