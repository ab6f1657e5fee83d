"""What operators over a rows x cols tensor share: they run on the vector units and move each element a few times.

A row by itself takes its time, however few there are; many rows are limited by what the device does for each of them
and by their bytes. Whether those come from cache makes another difference.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import Any, ClassVar

from chip.dtypes import BYTES
from chip.ops.base_time import BaseTime, blend, bytes_over
from chip.records import dataclass
from chip.types import Cost, Op

SHARP = 3  # of the blend of one row's time and many rows'
KNEE = 4  # how suddenly the cache ends
IN_REGISTERS, PASS = 1024, 2048  # columns that torch.compile's kernels hold, and that they take at a time
COMPILED = "compiled"  # the implementation that torch.compile makes
OF_TORCH = ("torch", "fp32")  # implementations whose kernels torch chooses by their sizes


@dataclass(frozen=True, slots=True)
class RowBase(BaseTime):
    row_s: float = 5e-7  # a row by itself: start and end, ...
    column_s: float = 1e-10  # ... and each column
    each_s: float = 1e-10  # for each of many rows
    sharp: float = 2.5  # of rows and bytes: 1 where their times add
    late: float = 0.5  # how much longer rows and bytes take that come from memory, not from cache
    knee_bytes: float = 4e7  # that a call may move and still find them in cache

    def seconds(self, op: Any) -> float:
        _, read, written = op.cost()
        return self._of(op.pass_cols)(op.rows, read + written)

    def over(self, make: Callable[..., Any]) -> Callable[..., float]:
        (fixed, each), one = bytes_over(make), make(1)
        rows, seconds = one.rows, self._of(one.pass_cols)
        return lambda tokens: seconds(rows * tokens, fixed + each * tokens)

    def _each_s(self, cols: int) -> float:
        """For each of many rows of so many columns."""
        return self.each_s

    def _of(self, cols: int) -> Callable[[int, float], float]:
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

    @property
    def compute(self) -> str:
        return "matmul_fp32"
