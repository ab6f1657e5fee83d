"""The forward of HF's LlamaRMSNorm and its many copies."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.rms_norm_composed import RmsNormComposed


def build(
    op: RmsNormComposed, device: torch.device, generator: torch.Generator, implementation: str = "torch"
) -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    weight = normal((op.cols,), op.dtype, device, generator)

    def call() -> object:
        wide = x.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(variance + 1e-6)
        return weight * wide.to(x.dtype)

    return call
