"""F.embedding: distinct random rows of a table four times what is gathered (the operator has no vocabulary axis)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, normal
from chip.ops.embedding import Embedding


def build(op: Embedding, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    rows = max(64, 4 * op.rows)
    table = normal((rows, op.cols), op.dtype, device, generator)
    ids = torch.randperm(rows, device=device, generator=generator)[: op.rows]
    return lambda: F.embedding(ids, table)
