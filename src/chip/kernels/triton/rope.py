"""Rotary positions of queries and keys in one kernel: a token's angles are read once for all of its heads.

Tensors are as a projection leaves them: tokens x heads x head_dim, cosines and sines tokens x head_dim. A program takes
one token: its halves (a, b) become (a cos - b sin, b cos + a sin), as HF's rotate_half has it.
"""

from __future__ import annotations

import torch

from chip.kernels.plans import power_of_two
from chip.kernels.triton.language import jit, tl, usable
from chip.measure.build import normal
from chip.measure.build.rope_composed import rotate_half
from chip.ops.rope import Rope

KIND = "rope"
BENCH = [Rope(4096, 40, 128), Rope(16384, 40, 128), Rope(16384, 36, 64)]
WARPS = 4


@jit
def _rotate(
    x, out, heads, half, x_head, out_head, low_cos, high_cos, low_sin, high_sin, HEADS: tl.constexpr, HALF:
    tl.constexpr,
):  # fmt: skip
    head = tl.arange(0, HEADS)[:, None]
    col = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (col < half)
    at = x + head * x_head + col
    low = tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    high = tl.load(at + half, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    to = out + head * out_head + col
    tl.store(to, low * low_cos - high * low_sin, mask=inside)
    tl.store(to + half, high * high_cos + low * high_sin, mask=inside)


@jit
def _rope(
    q, k, cos, sin, q_out, k_out, half, q_heads, k_heads, q_token, q_head, k_token, k_head, qo_token, qo_head,
    ko_token, ko_head, cos_token, sin_token, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, HALF)[None, :]
    c = cos + token * cos_token + col
    s = sin + token * sin_token + col
    low_cos = tl.load(c, mask=col < half, other=0.0).to(tl.float32)
    high_cos = tl.load(c + half, mask=col < half, other=0.0).to(tl.float32)
    low_sin = tl.load(s, mask=col < half, other=0.0).to(tl.float32)
    high_sin = tl.load(s + half, mask=col < half, other=0.0).to(tl.float32)
    q += token * q_token
    k += token * k_token
    q_out += token * qo_token
    k_out += token * ko_token
    _rotate(q, q_out, q_heads, half, q_head, qo_head, low_cos, high_cos, low_sin, high_sin, Q_HEADS, HALF)
    _rotate(k, k_out, k_heads, half, k_head, ko_head, low_cos, high_cos, low_sin, high_sin, K_HEADS, HALF)


def run(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if not usable(q):
        return native(q, k, cos, sin)
    q_out, k_out = out or (torch.empty_like(q), torch.empty_like(k))
    tokens, q_heads, dim = q.shape
    steps = [s for t in (q, k, q_out, k_out) for s in t.stride()[:2]]
    shape = power_of_two(q_heads), power_of_two(k.shape[1]), power_of_two(dim // 2)
    _rope[(tokens,)](
        q, k, cos, sin, q_out, k_out, dim // 2, q_heads, k.shape[1], *steps, cos.stride(0), sin.stride(0), *shape,
        num_warps=WARPS,
    )  # fmt: skip
    return q_out, k_out


def inputs(op: Rope, device: torch.device, generator: torch.Generator, pad: int = 0) -> tuple[torch.Tensor, ...]:
    keys = max(1, op.heads // 5)  # as chip.measure.build.rope: grouped-query attention, 4 : 1
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
