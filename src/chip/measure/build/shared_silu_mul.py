"""`compiled`: one kernel of torch.compile for any number of rows and columns, over what a merged projection gives."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from chip.measure.build import Closure, normal
from chip.measure.build.silu_mul import gated
from chip.ops.shared_silu_mul import SharedSiluMul


def implementations(op: SharedSiluMul, device_type: str) -> tuple[str, ...]:
    return ("compiled",)


@lru_cache(maxsize=1)
def of_any_size() -> Callable[[torch.Tensor], object]:
    made: Callable[[torch.Tensor], object] = torch.compile(gated, dynamic=True)
    return made


def build(
    op: SharedSiluMul, device: torch.device, generator: torch.Generator, implementation: str = "compiled"
) -> Closure:
    merged = normal((max(2, op.rows), 2 * op.cols), op.dtype, device, generator)
    run = of_any_size() if device.type == "cuda" else gated  # a CPU shows the values, not the kernel
    return lambda: run(merged)
