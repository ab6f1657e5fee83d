"""The forward of HF's rotary embedding, with the positions it is asked for."""

from __future__ import annotations

import torch

from chip.measure.build import Closure, torch_dtype
from chip.ops.rotary_table import RotaryTable


def build(op: RotaryTable, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    frequencies = 1.0 / 10000.0 ** (torch.arange(0, op.cols, 2, device=device, dtype=torch.float32) / op.cols)
    dtype = torch_dtype(op.dtype)

    def call() -> object:
        positions = (torch.arange(op.rows, device=device) + 1)[None]
        angles = (frequencies[None, :, None].float() @ positions[:, None, :].float()).transpose(1, 2)
        both = torch.cat((angles, angles), dim=-1)
        return (both.cos() * 1.0).to(dtype), (both.sin() * 1.0).to(dtype)

    return call
