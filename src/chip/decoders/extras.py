"""What a layer has beside attention and MLP: low-rank branches, short convolutions, lanes of the residual stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chip.dtypes import BYTES, Precision
from chip.ops.linear import Linear
from chip.ops.moves import Embedding
from chip.ops.other import Pointwise
from chip.ops.states import CausalConv
from chip.types import Op


@dataclass(frozen=True, slots=True)
class Extra:
    """Small matrices and passes over a step's tokens. Its weights keep the activation's width, whole on each GPU."""

    role: str
    products: tuple[tuple[int, int], ...] = ()  # outputs and inputs of each matrix
    passes: tuple[tuple[int, int], ...] = ()  # values of a token that each kernel reads and writes
    conv: tuple[int, int] = (0, 0)  # channels and taps of a causal convolution, whose last inputs are a state
    table: tuple[int, int] = (0, 0)  # rows and width of a table that each token reads a row of
    vectors: int = 0  # parameters that are no matrix

    @property
    def params(self) -> int:
        of_products = sum(n * k for n, k in self.products)
        return of_products + self.conv[0] * self.conv[1] + self.table[0] * self.table[1] + self.vectors

    def state_bytes(self, p: Precision) -> float:
        channels, taps = self.conv
        return channels * (taps - 1) * BYTES[p.activation] if channels else 0.0

    def ops(self, tokens: int, p: Precision) -> Iterator[Op]:
        act = p.activation
        if self.table[1]:
            yield Embedding(tokens, self.table[1], act)
        for n, k in self.products:
            yield Linear(tokens, n, k, act, act)
        if self.conv[0]:
            yield CausalConv(tokens, self.conv[0], act, self.conv[1])
        for reads, writes in self.passes:
            yield Pointwise(tokens * reads, tokens * writes, act)


def norm_and_add(hidden: int) -> tuple[tuple[int, int], ...]:
    """Passes of a branch that is normed, then added to the residual stream."""
    return (hidden, hidden), (2 * hidden, hidden)
