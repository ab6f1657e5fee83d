"""torch.argmax over the vocabulary; `fp32` widens the logits first, as vLLM does."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.ops.sampling import Sampling


def implementations(op: Sampling, device_type: str) -> tuple[str, ...]:
    return ("torch", "fp32")


def build(op: Sampling, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    if implementation == "fp32":
        return lambda: torch.argmax(x.to(torch.float32), -1)
    return lambda: torch.argmax(x, -1)
