"""torch.relu: one kernel; `compiled` by torch.compile."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, compiled, normal
from chip.ops.relu import Relu


def implementations(op: Relu, device_type: str) -> tuple[str, ...]:
    return ("torch", "compiled")


def build(op: Relu, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    rows = max(2, op.rows) if implementation == "compiled" else op.rows
    x = normal((rows, op.cols), op.dtype, device, generator)
    return compiled(torch.relu, (x,)) if implementation == "compiled" else lambda: torch.relu(x)
