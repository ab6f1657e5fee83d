"""Operators over a rows x cols tensor: norms, activations, sums, copies. They run on the vector units and move each
element a few times. Most are a row of the table at the end of this file.

A row by itself takes its time, however few there are; many rows are limited by what the device does for each of them
and by their bytes. Whether those come from cache makes another difference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import log2
from typing import Any, ClassVar

from chip.dtypes import BYTES
from chip.ops import BaseTime, GrowingBase, blend
from chip.types import Cost, Op

SHARP = 3  # of the blend of one row's time and many rows'
KNEE = 4  # how suddenly the cache ends
FP32 = BYTES["fp32"]
IN_REGISTERS, PASS = 1024, 2048  # columns that torch.compile's kernels hold, and that they take at a time
COMPILED = "compiled"  # the implementation that torch.compile makes
OF_TORCH = ("torch", "fp32")  # implementations whose kernels torch chooses by their sizes


@dataclass(frozen=True, slots=True)
class RowBase(GrowingBase):
    row_s: float = 5e-7  # a row by itself: start and end, ...
    column_s: float = 1e-10  # ... and each column
    each_s: float = 1e-10  # for each of many rows
    sharp: float = 2.5  # of rows and bytes: 1 where their times add
    late: float = 0.5  # how much longer rows and bytes take that come from memory, not from cache
    knee_bytes: float = 4e7  # that a call may move and still find them in cache

    def fixed(self, op: Any) -> tuple[int, ...]:
        return (op.pass_cols,)

    def amount(self, op: Any) -> int:
        return int(op.rows)

    def _each_s(self, cols: int) -> float:
        """For each of many rows of so many columns."""
        return self.each_s

    def of_fixed(self, cols: int) -> Callable[[int, float], float]:
        """For any rows of so many columns, and bytes that they move."""
        floor_s, one_s, bytes_per_s = self.floor_s, self.row_s + self.column_s * cols, self.bytes_per_s
        each_s = self._each_s(cols)
        late, knee_bytes, sharp = self.late, self.knee_bytes, self.sharp

        def seconds(rows: int, moved: float) -> float:
            later = 1 + late / (1 + (knee_bytes / moved) ** KNEE)
            many_s = blend(rows * each_s, moved / bytes_per_s * later, sharp)
            return floor_s + blend(one_s * later, many_s, SHARP)

        return seconds


@dataclass(frozen=True, slots=True)
class CompiledRowBase(RowBase):
    """As torch.compile sums rows up: short ones stay in registers, longer ones are read twice, in whole passes."""

    pass_s: float = 1e-9  # for each pass over each of many rows

    def _each_s(self, cols: int) -> float:
        return self.each_s + (self.pass_s * -(-cols // PASS) if cols > IN_REGISTERS else 0.0)


class OverRows(Op):
    """What norms, activations, gathers and samplers share as operators to be measured."""

    __slots__ = ()
    WARM: ClassVar[bool] = True
    FLAT: ClassVar[bool] = False  # takes each element by itself: only how many there are counts
    LANES: ClassVar[int] = 1  # columns that a block takes in one pass
    EDGES: ClassVar[tuple[int, ...]] = ()  # columns: the last of each kernel of torch's before the next

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return CompiledRowBase if kernel == COMPILED and not cls.FLAT else RowBase

    def place(self) -> tuple[float, ...]:
        rows, cols = self.rows, self.cols  # type: ignore[attr-defined]
        if self.FLAT:
            return (log2(rows * cols) / 2,)
        return log2(rows), log2(cols)

    @property
    def pass_cols(self) -> int:
        """Columns of whole passes: a row's last one takes as long with few columns as with all."""
        return -(-self.cols // self.LANES) * self.LANES  # type: ignore[attr-defined,no-any-return]

    def kernel_of(self, implementation: str) -> str:
        """torch takes another kernel where rows are wider: `torch.2` is the third."""
        if not self.EDGES or implementation not in OF_TORCH:
            return implementation
        return f"{implementation}.{sum([self.cols > e for e in self.EDGES])}"  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Elementwise(OverRows):
    rows: int
    cols: int
    dtype: str = "bf16"

    FLOPS: ClassVar[int] = 1  # per element of the result
    READS: ClassVar[int] = 1  # tensors of rows x cols read
    WRITES: ClassVar[int] = 1
    VECTORS: ClassVar[int] = 0  # tensors of cols read (weights and biases of norms)

    def cost(self) -> Cost:
        elements = self.rows * self.cols
        width = BYTES[self.dtype]
        return Cost(
            self.FLOPS * elements,
            (self.READS * elements + self.VECTORS * self.cols) * width,
            self.WRITES * elements * width,
        )

    @property
    def elements(self) -> int:
        return self.rows * self.cols


def define(kind: str, what: str, *bases: type[Elementwise], **attributes: object) -> type[Elementwise]:
    """An operator that needs no code of its own: the class attributes in which it differs from its bases."""
    bases = bases or (Elementwise,)
    if unknown := [name for name in attributes if not hasattr(bases[0], name)]:
        raise TypeError(f"{kind}: no operator over rows has {', '.join(unknown)}")
    family = sys._getframe(1).f_globals["__name__"]
    body = {"__slots__": (), "__module__": family, "__doc__": what, "kind": kind, **attributes}
    return type(kind.title().replace("_", ""), bases, body)


class RmsNormComposed(Elementwise):
    """RMS normalisation as HF's modules spell it: eight kernels that pass over the rows again and again.

    x is widened to fp32, squared, averaged, scaled by the inverse root, narrowed and multiplied by the weight.
    """

    __slots__ = ()
    kind: ClassVar[str] = "rms_norm_composed"
    KERNELS: ClassVar[int] = 8
    FLOPS: ClassVar[int] = 4  # of a value
    # How often values are read and written in fp32, and how often in their own type: widen, square, average, scale,
    # narrow, times weight.
    FP32_READ: ClassVar[int] = 4
    FP32_WRITTEN: ClassVar[int] = 3
    OWN_TYPE: ClassVar[int] = 2
    WEIGHT_FP32: ClassVar[int] = 0  # how often the weight is written in fp32 and read again

    def cost(self) -> Cost:
        elements, width, weight = self.rows * self.cols, BYTES[self.dtype], self.cols
        unwidened, widened = elements * self.OWN_TYPE * width, weight * self.WEIGHT_FP32 * FP32
        read = elements * self.FP32_READ * FP32 + unwidened + weight * width + widened
        return Cost(self.FLOPS * elements, read, elements * self.FP32_WRITTEN * FP32 + unwidened + widened)


THREADS = 512  # columns of a pass of torch's norms: 128 threads, four columns each

# fmt: off
# Of two tensors, of none, of each element by itself
Add = define("add", "Elementwise addition of two tensors (a residual connection).", FLAT=True, READS=2)
Copy = define("copy", "Copy of a contiguous tensor from device memory to device memory.", FLAT=True, FLOPS=0)
Fill = define("fill", "Fill of a tensor with one value: writes only.", FLAT=True, FLOPS=0, READS=0)
Scale = define(
    "scale", "Multiplication of every element by one scalar (embedding and residual multipliers).", FLAT=True,
)
Softcap = define("softcap", "Soft cap c * tanh(x / c) of every element (Gemma-2 logits).", FLAT=True, FLOPS=4)
Relu = define("relu", "ReLU of every element.", FLAT=True)
Silu = define("silu", "SiLU (swish) of every element: x * sigmoid(x).", FLAT=True, FLOPS=4)
Gelu = define(
    "gelu", "GELU of every element (counted as 8 FLOPs: cube, tanh and the products around it).", FLAT=True, FLOPS=8,
)
GeluFast = define(
    "gelu_fast",
    "GELU as HF's `gelu_fast` and BLOOM spell it, in nine kernels: 0.5 x (1 + tanh(c x (1 + 0.044715 x x))).",
    FLAT=True, KERNELS=9, FLOPS=8, READS=12, WRITES=9,  # three of the nine are products of two
)
GeluNew = define(
    "gelu_new", "GELU as HF's `gelu_new` spells it, in eight kernels: 0.5 x (1 + tanh(c (x + 0.044715 x^3))).",
    FLAT=True, KERNELS=8, FLOPS=8, READS=10, WRITES=8,  # of the eight, the sum with x and the last product read two
)
# Gated activations
SiluMul = define(
    "silu_mul", "Gated activation silu(x) * y: reads two rows x cols tensors, writes one. Also stands for gelu(x) * y.",
    FLAT=True, FLOPS=5, READS=2,
)
SharedSiluMul = define(
    "shared_silu_mul",
    "Gated activation of shared experts, as vLLM compiles it: by itself, for any number of rows and columns.\n\n"
    "It moves what `silu_mul` moves, at two thirds of the rate: a kernel whose columns are a variable cannot load "
    "whole\nvectors.",
    SiluMul,
)
SiluMulHalves = define(
    "silu_mul_halves",
    "Gated activation of the two halves of a merged projection, where they lie: silu(x[:, :cols]) * x[:, cols:].\n\n"
    "The halves are slices, so that torch takes kernels without vector loads. Also stands for gelu(x) * y.",
    KERNELS=2, FLOPS=5, READS=3, WRITES=2,  # reads one half; then its activation and the other half
)
# Norms
Softmax = define(
    "softmax", "Softmax over the columns: maximum, exponential, sum, division.", FLOPS=5,
    EDGES=(2048, 9216, 24511),  # torch: a warp a row, the row in registers, the row in shared memory, neither
)
RowNormalize = define("row_normalize", "Standardise each row: (x - mean) / std, no weights.", FLOPS=6)
LayerNorm = define(
    "layer_norm", "Layer normalisation over the columns, with weight and bias: mean, variance, scale, shift.",
    LANES=THREADS, FLOPS=8, VECTORS=2,
)
LayerNormGelu = define(
    "layer_norm_gelu",
    "Layer normalisation followed by GELU, as one operator: the tensor is read once and written once.",
    FLOPS=16, VECTORS=2,
)
AddLayerNorm = define(
    "add_layer_norm",
    "Residual addition fused with layer normalisation: reads x and the residual, writes the sum and its norm.",
    LANES=THREADS, FLOPS=9, READS=2, WRITES=2, VECTORS=2,
)
RmsNorm = define(
    "rms_norm", "Root-mean-square normalisation over the columns, with weight.", LANES=THREADS, FLOPS=4, VECTORS=1,
)
AddRmsNorm = define(
    "add_rms_norm",
    "Residual addition fused with RMS normalisation: reads x and the residual, writes the sum and its norm.",
    LANES=THREADS, FLOPS=5, READS=2, WRITES=2, VECTORS=1,
)
# As HF's modules spell them
RmsNormFp32 = define(
    "rms_norm_fp32", "RMS normalisation, its weight multiplied in fp32, as in HF's OLMo-2.",
    RmsNormComposed, FP32_READ=5, FP32_WRITTEN=4, OWN_TYPE=1,
)
RmsNormPlusOne = define(
    "rms_norm_plus_one", "RMS normalisation in fp32, one added to its weight, as in HF's Gemma.",
    RmsNormFp32, KERNELS=10, WEIGHT_FP32=2,
)
LayerNormComposed = define(
    "layer_norm_composed", "Layer normalisation as HF's Cohere spells it: twelve kernels in fp32.",
    RmsNormFp32, KERNELS=12, FLOPS=7, FP32_READ=8, FP32_WRITTEN=6, WEIGHT_FP32=1,
)
# fmt: on

# By the names that HF's configs have for them; those of any other `gelu...` are plain ones.
ACTIVATIONS = {
    **{c.kind: c for c in (Gelu, GeluFast, GeluNew, Relu, Silu)}, "quick_gelu": Gelu, "swish": Silu,
    "relu2": Relu, "xielu": Silu, "swigluoai": Silu,  # one pass over the same values
}  # fmt: skip
