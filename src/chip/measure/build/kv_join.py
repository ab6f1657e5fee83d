"""torch.cat of keys and of values with those of a new token, as HF's DynamicCache does it."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.kv_join import KvJoin


def build(op: KvJoin, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    new = min(op.q_len, op.keys)

    def pair(width: int) -> tuple[torch.Tensor, ...]:
        shapes = [(op.batch, op.kv_heads, n, width) for n in (op.keys - new, new)]
        return tuple(normal(shape, op.dtype, device, generator) for shape in shapes)

    k, v = pair(op.head_dim), pair(op.v_head_dim or op.head_dim)
    return lambda: (torch.cat(k, dim=-2), torch.cat(v, dim=-2))
