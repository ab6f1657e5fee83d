"""Rotary positions of queries and keys. torch has no such operator: `torch` is HF's formula, ten kernels; `compiled` is
that of vLLM by torch.compile, over the result of a merged projection and a table of cosines and sines."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, compiled, normal, rope_composed
from chip.ops.rope import Rope


def implementations(op: Rope, device_type: str) -> tuple[str, ...]:
    return ("torch", "compiled")


def rotated(both: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    cos, sin = table.index_select(0, positions).unsqueeze(1).chunk(2, -1)
    first, second = both.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def build(op: Rope, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    if implementation != "compiled":
        return rope_composed.build(op, device, generator)
    rows = max(2, op.rows)
    both = normal((rows, op.heads, op.head_dim), op.dtype, device, generator)
    table = normal((8192, op.head_dim), op.dtype, device, generator)
    positions = torch.randint(0, 8192, (rows,), device=device, generator=generator)
    return compiled(rotated, (both, positions), (table,))
