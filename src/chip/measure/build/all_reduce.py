"""Collectives need several GPUs at once; `chip profile` measures one device."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, Unsupported
from chip.ops.all_reduce import AllReduce


def build(op: AllReduce, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    raise Unsupported("all_reduce needs several GPUs; `chip profile` measures one device")
