"""Rotary positions as HF's modules apply them: q cos + rotate_half(q) sin, then the same for k.

The operator counts query and key heads together; a fifth of them are taken as keys (grouped-query attention, 4 : 1).
"""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.rope import Rope


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def build(op: Rope, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    keys = op.heads // 5 or op.heads // 2
    # as a projection leaves them: tokens before heads in memory, heads before tokens in shape
    q = normal((1, op.rows, op.heads - keys, op.head_dim), op.dtype, device, generator).transpose(1, 2)
    k = normal((1, op.rows, keys, op.head_dim), op.dtype, device, generator).transpose(1, 2)
    cos = normal((1, 1, op.rows, op.head_dim), op.dtype, device, generator)
    sin = normal((1, 1, op.rows, op.head_dim), op.dtype, device, generator)

    def call() -> object:
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin

    return call
