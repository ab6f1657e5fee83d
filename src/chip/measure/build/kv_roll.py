"""What HF's StaticCache does with a full sliding window: roll, write the last slot, copy back; keys, then values."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.kv_roll import KvRoll


def build(op: KvRoll, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    widths = (op.cols - op.cols // 2, op.cols // 2)
    caches = [normal((op.rows, w), op.dtype, device, generator) for w in widths]
    new = [normal((1, w), op.dtype, device, generator) for w in widths]

    def call() -> object:
        for held, last in zip(caches, new):
            rolled = held.roll(-1, dims=0)
            rolled[-1:] = last
            held.copy_(rolled)
        return caches

    return call
