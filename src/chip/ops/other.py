"""Operators of models that are no language models, and any kernel of a traced one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chip.dtypes import BYTES
from chip.types import ChipError, Cost, MatrixProduct, Op


@dataclass(frozen=True, slots=True)
class Pointwise(Op):
    """Any other kernel, known by the elements it reads and writes: casts, concatenations, reductions of a traced
    model."""

    reads: int
    writes: int
    dtype: str = "bf16"

    kind: ClassVar[str] = "pointwise"

    def cost(self) -> Cost:
        width = BYTES[self.dtype]
        return Cost(max(self.reads, self.writes), self.reads * width, self.writes * width)


@dataclass(frozen=True, slots=True)
class Conv2d(MatrixProduct):
    """2-D convolution, batch of images in NCHW, square or rectangular kernels."""

    batch: int
    in_channels: int
    height: int
    width: int
    out_channels: int
    kernel_h: int = 3
    kernel_w: int = 3
    stride: int = 1
    padding: int = 0
    dtype: str = "bf16"

    kind: ClassVar[str] = "conv2d"

    def check(self) -> None:
        if self.out_height < 1 or self.out_width < 1:
            raise ChipError(
                f"conv2d: kernel {self.kernel_h}x{self.kernel_w} is larger than the padded image "
                f"{self.height + 2 * self.padding}x{self.width + 2 * self.padding}"
            )

    @property
    def out_height(self) -> int:
        return (self.height + 2 * self.padding - self.kernel_h) // self.stride + 1

    @property
    def out_width(self) -> int:
        return (self.width + 2 * self.padding - self.kernel_w) // self.stride + 1

    def cost(self) -> Cost:
        bytes_each = BYTES[self.dtype]
        taps = self.in_channels * self.kernel_h * self.kernel_w
        out = self.batch * self.out_channels * self.out_height * self.out_width
        image = self.batch * self.in_channels * self.height * self.width
        return Cost(2 * out * taps, (image + self.out_channels * taps) * bytes_each, out * bytes_each)


@dataclass(frozen=True, slots=True)
class Lstm(MatrixProduct):
    """LSTM over a whole sequence: per step and layer four gates from the input and from the hidden state."""

    batch: int
    seq: int
    input_size: int
    hidden: int
    layers: int = 1
    dtype: str = "bf16"

    kind: ClassVar[str] = "lstm"

    def cost(self) -> Cost:
        width = BYTES[self.dtype]
        inputs = self.input_size + (self.layers - 1) * self.hidden  # summed over layers
        weights = 4 * self.hidden * (inputs + self.layers * self.hidden) + 8 * self.hidden * self.layers
        steps = self.batch * self.seq
        # gates: 4 activations of about 4 FLOPs, cell update 3, output 5
        pointwise = 24 * steps * self.hidden * self.layers
        states = 2 * self.batch * self.hidden * self.layers  # hidden and cell, read once and written once
        read = (weights + steps * inputs + states) * width
        return Cost(self.counted_flops + pointwise, read, (steps * self.hidden * self.layers + states) * width)

    @property
    def counted_flops(self) -> float:
        inputs = self.input_size + (self.layers - 1) * self.hidden
        return 8 * self.batch * self.seq * self.hidden * (inputs + self.layers * self.hidden)
