"""New keys and values rounded into an fp8 cache: `torch`, index_copy_ of the rounded values; `paged`, into pages in one
kernel, as vLLM calls it (from an environment that has vLLM)."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal
from chip.measure.build.kv_append import paged
from chip.ops.kv_append_fp8 import KvAppendFp8


def implementations(op: KvAppendFp8, device_type: str) -> tuple[str, ...]:
    return ("torch",) if device_type == "cpu" else ("paged", "torch")


def build(op: KvAppendFp8, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    if implementation == "paged":
        return paged(op, device, generator, "fp8")
    new = normal((op.rows, op.cols), op.dtype, device, generator)
    cache = torch.empty((2 * op.rows, op.cols), dtype=torch.uint8, device=device)
    positions = torch.arange(op.rows // 2, op.rows // 2 + op.rows, device=device)
    return lambda: cache.index_copy_(0, positions, new.to(torch.float8_e4m3fn).view(torch.uint8))
