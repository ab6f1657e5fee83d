"""nn.LSTM over a batch of sequences, batch first (cuDNN on an NVIDIA GPU)."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, normal, torch_dtype
from chip.ops.lstm import Lstm


def build(op: Lstm, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    dtype = torch_dtype(op.dtype)
    layer = torch.nn.LSTM(op.input_size, op.hidden, op.layers, batch_first=True, device=device, dtype=dtype)
    layer.requires_grad_(False)
    x = normal((op.batch, op.seq, op.input_size), op.dtype, device, generator)
    return lambda: layer(x)
