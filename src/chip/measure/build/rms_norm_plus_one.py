"""The forward of HF's GemmaRMSNorm."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.rms_norm_plus_one import RmsNormPlusOne


def build(
    op: RmsNormPlusOne, device: torch.device, generator: torch.Generator, implementation: str = "torch"
) -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    weight = normal((op.cols,), op.dtype, device, generator)

    def call() -> object:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (wide * (1.0 + weight.float())).type_as(x)

    return call
