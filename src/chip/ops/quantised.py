"""Quantised operators: a layer's input rounded, by itself or in the kernel before it, products of narrow weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops import BaseTime
from chip.ops.elementwise import AddRmsNorm, Elementwise, RmsNorm, SiluMul, define
from chip.ops.linear import ALIGNED, GemmBase, Linear
from chip.types import Cost

SCALE_BYTES, PACKED_SCALE_BYTES = 4, 2  # of a product of two quantised operands, of packed weights
FP8_ROWS = (16, 64, 128)  # most rows of each of CUTLASS's fp8 kernels on Hopper but the largest, as vLLM chooses them
DEEP_GEMM = "deepgemm"  # multiplies with scales of blocks only
MARLIN, MACHETE = "marlin", "machete"


@dataclass(frozen=True, slots=True)
class Quantize(Elementwise):
    """Rounding of a layer's input: rows x cols values of 16 bits to `to`, with a scale for each `group` of a row's
    values (0: for each row; with `per_tensor` one for all). A dynamic scale is the largest magnitude it covers, found
    in the same kernel; a `static` one is read."""

    to: str = "fp8"
    group: int = 0
    per_tensor: bool = False
    static: bool = False

    kind: ClassVar[str] = "quantize"
    FLOPS: ClassVar[int] = 3  # magnitude, largest, scaled

    def cost(self) -> Cost:
        scales = 1 if self.per_tensor else self.rows * -(-self.cols // (self.group or self.cols))
        # a dynamic scale of the whole tensor is known only after all of it was read once
        passes = 2 if self.per_tensor and not self.static else 1
        read, written = passes * self.elements * BYTES[self.dtype], self.elements * BYTES[self.to]
        if self.static:
            return Cost(self.FLOPS * self.elements, read + SCALE_BYTES * scales, written)
        return Cost(self.FLOPS * self.elements, read, written + SCALE_BYTES * scales)

    def kernel_of(self, implementation: str) -> str:
        if self.to != "fp8":
            return f"{implementation}.{self.to}"
        return implementation + (".group" if self.group else ".static" if self.static else "")


@dataclass(frozen=True, slots=True)
class WithRounding(Elementwise):
    """A norm or an activation (`PLAIN`, the base after this one) whose kernel rounds its result, too."""

    to: str = "fp8"
    group: int = 0

    PLAIN: ClassVar[type[Elementwise]] = Elementwise

    @property
    def plain(self) -> Elementwise:
        """The kernel without the rounding: a close stand-in where this one was not measured."""
        return self.PLAIN(self.rows, self.cols, self.dtype)

    def kernel_of(self, implementation: str) -> str:
        """A scale for each group is another kernel: vLLM's own, which torch.compile does not make."""
        return f"{implementation}.group" if self.group else implementation

    def cost(self) -> Cost:
        plain = Elementwise.cost(self)
        scales = self.rows * -(-self.cols // (self.group or self.cols))
        narrower = self.elements * (BYTES[self.dtype] - BYTES[self.to])
        written = plain.write_bytes - narrower + SCALE_BYTES * scales
        return Cost(plain.flops + 3 * self.elements, plain.read_bytes, written)


# fmt: off
RmsNormQuant = define(
    "rms_norm_quant",
    "RMS normalisation and rounding: one kernel, the result in `to`, with a dynamic scale for each `group` of a row's\n"
    "values (0: for each row).",
    WithRounding, RmsNorm, PLAIN=RmsNorm,
)
AddRmsNormQuant = define(
    "add_rms_norm_quant",
    "Residual addition, RMS normalisation and rounding: one kernel, the result in `to`, with a dynamic scale for each\n"
    "`group` of a row's values (0: for each row).",
    WithRounding, AddRmsNorm, PLAIN=AddRmsNorm,
)
SiluMulQuant = define(
    "silu_mul_quant",
    "Gated activation silu(x) * y and rounding: one kernel, the result in `to`, with a dynamic scale for each `group` "
    "of a\nrow's values (0: for each row).",
    WithRounding, SiluMul, PLAIN=SiluMul, FLAT=False,  # the largest magnitude is that of a row
)
# fmt: on


@dataclass(frozen=True, slots=True)
class ScaledLinear(Linear):
    """Dense layer of two quantised operands (fp8, int8 or fp4): x is m x k, W is n x k, both with scales that are
    applied inside the product. A weight scale covers `block_n` x `block_k` weights (0: the whole axis), a scale of x
    `group` of a token's values (0: all of them; with `per_tensor` all tokens' together). The result has 16 bits."""

    dtype: str = "fp8"
    block_n: int = 0
    block_k: int = 0
    group: int = 0
    per_tensor: bool = False

    kind: ClassVar[str] = "scaled_linear"

    def cost(self) -> Cost:
        plain = Linear.cost(self)
        of_weights = -(-self.n // (self.block_n or self.n)) * -(-self.k // (self.block_k or self.k))
        of_input = 1 if self.per_tensor else self.m * -(-self.k // (self.group or self.k))
        return plain + Cost(0, SCALE_BYTES * (of_weights + of_input), 0)

    def kernel_of(self, implementation: str) -> str:
        """Scales of blocks are another kernel."""
        if not self.block_k:
            return "cutlass" if implementation == DEEP_GEMM else implementation
        return f"{implementation}.block"

    def place(self) -> tuple[float, ...]:
        """Products that take another kernel lie apart."""
        if self.dtype != "fp8" or self.block_k:
            return Linear.place(self)
        return *Linear.place(self), float(sum([self.m > most for most in FP8_ROWS]))

    def like_measured(self) -> ScaledLinear | None:
        if self.n % ALIGNED or self.k % ALIGNED:
            return None
        return replace(self, bias=False, weight_dtype="") if self.bias or self.weight_dtype == self.dtype else self


class MarlinBase(GemmBase):
    """Marlin multiplies 8 tokens at least."""

    __slots__ = ()
    ROWS: ClassVar[int] = 8


class MacheteBase(GemmBase):
    """Machete multiplies 16 tokens at least."""

    __slots__ = ()
    ROWS: ClassVar[int] = 16


@dataclass(frozen=True, slots=True)
class PackedLinear(Linear):
    """Dense layer of a 16-bit input and narrow weights (W4A16, W8A16, fp8 weights on a GPU without fp8 products): x is
    m x k, W is n x k, stored as `weight_dtype` with a 16-bit scale for each `group` of a row (0: the whole row) and,
    with `zeros`, a zero point as wide as a weight. The kernel dequantises and multiplies in `dtype`."""

    weight_dtype: str = "int4"
    group: int = 0
    zeros: bool = False

    kind: ClassVar[str] = "packed_linear"

    def cost(self) -> Cost:
        plain = Linear.cost(self)
        scales = self.n * -(-self.k // (self.group or self.k))
        beside = PACKED_SCALE_BYTES + (BYTES[self.weight_dtype] if self.zeros else 0)
        return plain + Cost(0, scales * beside, 0)

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return MacheteBase if kernel.startswith(MACHETE) else MarlinBase

    def kernel_of(self, implementation: str) -> str:
        """Marlin was measured with one kind of byte, and unpacks the other alike."""
        stored = "fp8" if implementation == MARLIN and self.weight_dtype == "int8" else self.weight_dtype
        return implementation if stored == "int4" else f"{implementation}.{stored}"

    def like_measured(self) -> PackedLinear | None:
        """Zero points are read beside the scales, at no cost that was seen."""
        if self.n % ALIGNED or self.k % ALIGNED:
            return None
        return replace(self, bias=False, zeros=False) if self.bias or self.zeros else self
