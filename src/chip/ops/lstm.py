"""LSTM over a whole sequence: per step and layer four gates from the input and from the hidden state."""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.records import dataclass
from chip.types import Cost, Op


@dataclass(frozen=True, slots=True)
class Lstm(Op):
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
        matmul = 2 * steps * 4 * self.hidden * (inputs + self.layers * self.hidden)
        # gates: 4 activations of about 4 FLOPs, cell update 3, output 5
        pointwise = 24 * steps * self.hidden * self.layers
        states = 2 * self.batch * self.hidden * self.layers  # hidden and cell, read once and written once
        read = (weights + steps * inputs + states) * width
        return Cost(matmul + pointwise, read, (steps * self.hidden * self.layers + states) * width)

    @property
    def compute(self) -> str:
        return "matmul_" + self.dtype

    @property
    def counted_flops(self) -> float:
        inputs = self.input_size + (self.layers - 1) * self.hidden
        return 8 * self.batch * self.seq * self.hidden * (inputs + self.layers * self.hidden)
