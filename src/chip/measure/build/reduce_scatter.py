"""Collectives need several GPUs at once; `chip profile` measures one device."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, Unsupported
from chip.ops.reduce_scatter import ReduceScatter


def build(
    op: ReduceScatter, device: torch.device, generator: torch.Generator, implementation: str = "torch"
) -> Closure:
    raise Unsupported("reduce_scatter needs several GPUs; `chip profile` measures one device")
