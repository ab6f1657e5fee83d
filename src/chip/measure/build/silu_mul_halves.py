"""What HF's merged MLPs run between their projections: chunk, then up * silu(gate) on the halves where they lie."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, normal
from chip.ops.silu_mul_halves import SiluMulHalves


def build(
    op: SiluMulHalves, device: torch.device, generator: torch.Generator, implementation: str = "torch"
) -> Closure:
    merged = normal((1, op.rows, 2 * op.cols), op.dtype, device, generator)

    def call() -> object:
        gate, up = merged.chunk(2, dim=-1)
        return up * F.silu(gate)

    return call
