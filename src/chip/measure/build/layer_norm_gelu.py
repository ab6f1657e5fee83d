"""F.layer_norm then F.gelu: two kernels, the tensor written and read once more between them."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, normal
from chip.ops.layer_norm_gelu import LayerNormGelu


def build(
    op: LayerNormGelu, device: torch.device, generator: torch.Generator, implementation: str = "torch"
) -> Closure:
    x = normal((op.rows, op.cols), op.dtype, device, generator)
    weight = normal((op.cols,), op.dtype, device, generator)
    bias = normal((op.cols,), op.dtype, device, generator)
    return lambda: F.gelu(F.layer_norm(x, (op.cols,), weight, bias))
