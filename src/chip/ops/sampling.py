"""What choosing tokens by more than the largest logit runs: kernels over a row of logits for each sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.elementwise import OverRows
from chip.types import Cost


@dataclass(frozen=True, slots=True)
class SamplingPass(OverRows):
    """A pass over rows of logits, some values read and written for each."""

    rows: int
    cols: int
    reads: int = 1
    writes: int = 1
    dtype: str = "fp32"

    kind: ClassVar[str] = "sampling_pass"
    LEDGER: ClassVar[str] = "sampling"

    def cost(self) -> Cost:
        elements = self.rows * self.cols
        return Cost(elements, elements * self.reads * BYTES[self.dtype], elements * self.writes * BYTES[self.dtype])
