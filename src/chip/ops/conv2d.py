"""2-D convolution, batch of images in NCHW, square or rectangular kernels."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.records import dataclass
from chip.types import ChipError, Cost, Op


@dataclass(frozen=True, slots=True)
class Conv2d(Op):
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

    @property
    def compute(self) -> str:
        return "matmul_" + self.dtype

    @property
    def counted_flops(self) -> float:
        return self.cost().flops
