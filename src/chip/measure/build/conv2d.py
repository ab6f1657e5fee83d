"""F.conv2d of images in NCHW order (`torch`, the default layout) or channels last (`channels_last`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.measure.build import Closure, normal
from chip.ops.conv2d import Conv2d


def implementations(op: Conv2d, device_type: str) -> tuple[str, ...]:
    return ("torch", "channels_last")


def build(op: Conv2d, device: torch.device, generator: torch.Generator, implementation: str = "torch") -> Closure:
    x = normal((op.batch, op.in_channels, op.height, op.width), op.dtype, device, generator)
    weight = normal((op.out_channels, op.in_channels, op.kernel_h, op.kernel_w), op.dtype, device, generator)
    if implementation == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
        weight = weight.contiguous(memory_format=torch.channels_last)
    return lambda: F.conv2d(x, weight, stride=op.stride, padding=op.padding)
