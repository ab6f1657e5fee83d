"""Stands for whatever kernel a traced model ran: it names no call of torch, so there is nothing to build."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, Unsupported
from chip.ops.pointwise import Pointwise


def build(op: Pointwise, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    raise Unsupported("pointwise stands for any kernel of a traced model; measure the operator it comes from")
