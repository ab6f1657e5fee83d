"""The forward of HF's Olmo2RMSNorm."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.rms_norm_fp32 import RmsNormFp32


def build(op: RmsNormFp32, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    weight = normal((op.cols,), op.dtype, device, generator)

    def call() -> object:
        wide = x.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(variance + 1e-6)
        return (weight * wide).to(x.dtype)

    return call
