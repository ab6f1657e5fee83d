"""Operators of models that are no language models, and those that one device cannot run."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.lab.measure.build import Closure, Draw, Unsupported, builds, torch_dtype
from chip.ops.other import Conv2d, Lstm
from chip.types import Op


@builds("conv2d", gpu=("torch", "channels_last"))
def conv2d(op: Conv2d, draw: Draw, implementation: str) -> Closure:
    """F.conv2d of images in NCHW order (`torch`, the default layout) or channels last (`channels_last`)."""
    x = draw.normal((op.batch, op.in_channels, op.height, op.width), op.dtype)
    weight = draw.normal((op.out_channels, op.in_channels, op.kernel_h, op.kernel_w), op.dtype)
    if implementation == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
        weight = weight.contiguous(memory_format=torch.channels_last)
    return lambda: F.conv2d(x, weight, stride=op.stride, padding=op.padding)


@builds("lstm")
def lstm(op: Lstm, draw: Draw, implementation: str) -> Closure:
    """nn.LSTM over a batch of sequences, batch first (cuDNN on an NVIDIA GPU)."""
    dtype = torch_dtype(op.dtype)
    layer = torch.nn.LSTM(op.input_size, op.hidden, op.layers, batch_first=True, device=draw.device, dtype=dtype)
    layer.requires_grad_(False)
    x = draw.normal((op.batch, op.seq, op.input_size), op.dtype)
    return lambda: layer(x)


@builds("all_gather")
@builds("all_reduce")
@builds("reduce_scatter")
def collective(op: Op, draw: Draw, implementation: str) -> Closure:
    raise Unsupported(f"{op.kind} needs several GPUs; `chip profile` measures one device")


@builds("pointwise")
def pointwise(op: Op, draw: Draw, implementation: str) -> Closure:
    raise Unsupported("pointwise stands for any kernel of a traced model; measure the operator it comes from")
