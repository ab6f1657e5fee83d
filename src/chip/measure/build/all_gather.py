"""Collectives need several GPUs at once; `chip profile` measures one device."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, Unsupported
from chip.ops.all_gather import AllGather


def build(op: AllGather, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    raise Unsupported("all_gather needs several GPUs; `chip profile` measures one device")
