"""Rotary positions and the write to pages: as PyTorch does it, a dozen kernels, or `chip`, one of ours."""

from __future__ import annotations

import torch

from chip.measure import own_ops
from chip.measure.build import Closure
from chip.ops.rope_store import RopeStore


def implementations(op: RopeStore, device_type: str) -> tuple[str, ...]:
    return ("torch", "chip")


def build(op: RopeStore, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    return own_ops.rope_store(op, device, generator, implementation == "chip")
