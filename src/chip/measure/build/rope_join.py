"""torch.cat of rotated heads with a rest that is empty, as HF's Phi-3 calls it, for queries and for keys.

As in `rope_composed` a fifth of the heads are taken as keys.
"""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.rope_join import RopeJoin

HEAD_DIM = 64


def build(op: RopeJoin, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    dim = HEAD_DIM if op.cols % HEAD_DIM == 0 else op.cols
    heads = op.cols // dim
    keys = heads // 5 or heads // 2

    def turned(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        # as the rotation leaves them: tokens before heads in memory, heads before tokens in shape
        x = normal((1, op.rows, count, dim), op.dtype, device, generator).transpose(1, 2)
        return x, x[..., dim:]

    pairs = [turned(count) for count in (heads - keys, keys) if count]
    return lambda: [torch.cat(pair, dim=-1) for pair in pairs]
