"""The forward of HF's CohereLayerNorm."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.layer_norm_composed import LayerNormComposed


def build(
    op: LayerNormComposed, device: torch.device, generator: torch.Generator, implementation: str = "torch"
) -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    weight = normal((op.cols,), op.dtype, device, generator)

    def call() -> object:
        wide = x.to(torch.float32)
        mean = wide.mean(-1, keepdim=True)
        variance = (wide - mean).pow(2).mean(-1, keepdim=True)
        wide = (wide - mean) * torch.rsqrt(variance + 1e-6)
        return (weight.to(torch.float32) * wide).to(x.dtype)

    return call
