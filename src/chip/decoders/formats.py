"""How the matrix of a dense layer is stored when it is quantised: its values, the scales and zero points beside them,
and what the layer's input is rounded to before the product.

A scale covers a block of `rows` x `cols` weights of a matrix with n outputs and k inputs; 0 stands for the whole axis:

    per tensor  rows 0, cols 0      per channel  rows 1, cols 0
    per group   rows 1, cols g      per block    rows 128, cols 128
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from chip.dtypes import BYTES


class Matrix(NamedTuple):
    """A dense layer's matrix: its role in the program, outputs, inputs, and how many alike there are."""

    role: str
    n: int
    k: int
    copies: int = 1


@dataclass(frozen=True, slots=True)
class WeightFormat:
    dtype: str  # of the stored values: fp8, int8, int4, fp4
    rows: int = 0
    cols: int = 0
    scale_bytes: float = 4
    zero_bytes: float = 0  # of the zero point beside each scale
    index_bytes: float = 0  # for each input: GPTQ's group of every input
    whole_bytes: float = 0  # for each matrix: a second scale over the scales, a scale of the input
    input: str = ""  # what the input is rounded to and multiplied in; "": the product runs in 16 bits
    input_group: int = 0  # values of a token that share a scale; 0: all of them
    input_per_tensor: bool = False  # one scale for the inputs of all tokens
    input_static: bool = False  # that scale is part of the checkpoint

    def scales(self, n: int, k: int) -> int:
        return -(-n // (self.rows or n)) * -(-k // (self.cols or k))

    def bytes(self, n: int, k: int) -> float:
        """Of a matrix with n outputs and k inputs, with everything that lies beside it."""
        beside = self.scales(n, k) * (self.scale_bytes + self.zero_bytes) + k * self.index_bytes + self.whole_bytes
        return n * k * BYTES[self.dtype] + beside

    @property
    def weight_only(self) -> WeightFormat:
        """The same weights where the GPU cannot multiply in the input's format: dequantised inside the product."""
        return replace(self, input="", input_group=0, input_per_tensor=False, input_static=False)

    @property
    def title(self) -> str:
        """Such as `fp8 weights, a scale for each 128x128 block; fp8 inputs, a scale for each token`."""
        over = {
            (0, 0): "a scale for each matrix",
            (1, 0): "a scale for each output",
        }.get((self.rows, self.cols))
        if over is None:
            block = f"{self.rows}x{self.cols} block" if self.rows > 1 else f"group of {self.cols}"
            over = f"a scale for each {block}"
        if not self.input:
            return f"{self.dtype} weights, {over}; 16-bit inputs"
        per = "all tokens" if self.input_per_tensor else "each token"
        if self.input_group:
            per = f"each {self.input_group} values of a token"
        return f"{self.dtype} weights, {over}; {self.input} inputs, a scale for {per}"


# What `--dtype` means of a model whose config names no format. fp8 is vLLM's `quantization="fp8"`; int4 has the group
# that most GPTQ and AWQ checkpoints have; mxfp4 and nvfp4 are defined with theirs.
UNIFORM: dict[str, WeightFormat] = {
    "fp8": WeightFormat("fp8", input="fp8"),
    "int8": WeightFormat("int8", rows=1, scale_bytes=2),
    "w8a8": WeightFormat("int8", rows=1, input="int8"),
    "int4": WeightFormat("int4", rows=1, cols=128, scale_bytes=2),
    "mxfp4": WeightFormat("fp4", rows=1, cols=32, scale_bytes=1),
    "nvfp4": WeightFormat("fp4", rows=1, cols=16, scale_bytes=1, whole_bytes=8, input="fp4", input_group=16),
}
