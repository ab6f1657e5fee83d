"""New keys and values copied into a cache of fixed size (index_copy_, as HF's StaticCache does), keys then values."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.kv_append import KvAppend


def build(op: KvAppend, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    widths = (op.cols - op.cols // 2, op.cols // 2)
    new = [normal((op.rows, w), op.dtype, device, generator) for w in widths]
    cache = [torch.empty((2 * op.rows, w), dtype=n.dtype, device=device) for w, n in zip(widths, new)]
    positions = torch.arange(op.rows // 2, op.rows // 2 + op.rows, device=device)

    def call() -> object:
        return cache[0].index_copy_(0, positions, new[0]), cache[1].index_copy_(0, positions, new[1])

    return call
