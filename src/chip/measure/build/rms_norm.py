"""F.rms_norm with weight; `compiled` is the formula by torch.compile, one kernel, as vLLM runs it.

What is compiled serves any number of rows above one; a single row is measured as two, which take the same time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure import own_ops
from chip.measure.build import Closure, compiled, normal
from chip.ops.rms_norm import RmsNorm


def implementations(op: RmsNorm, device_type: str) -> tuple[str, ...]:
    return ("torch", "compiled", "chip")


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight


def build(op: RmsNorm, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    if implementation == own_ops.NAME:
        return own_ops.rms_norm(op, device, generator)
    rows = max(2, op.rows) if implementation == "compiled" else op.rows
    x = normal((rows, op.cols), op.dtype, device, generator)
    weight = normal((op.cols,), op.dtype, device, generator)
    if implementation == "compiled":
        return compiled(norm, (x,), (weight,))
    return lambda: F.rms_norm(x, (op.cols,), weight, 1e-6)
