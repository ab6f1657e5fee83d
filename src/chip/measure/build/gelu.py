"""F.gelu, exact (erf): one kernel; `compiled` by torch.compile."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, compiled, normal
from chip.ops.gelu import Gelu


def implementations(op: Gelu, device_type: str) -> tuple[str, ...]:
    return ("torch", "compiled")


def gelu(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x)


def build(op: Gelu, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    rows = max(2, op.rows) if implementation == "compiled" else op.rows
    x = normal((rows, op.cols), op.dtype, device, generator)
    return compiled(gelu, (x,)) if implementation == "compiled" else lambda: gelu(x)
