"""Mixers whose memory is a state of one size for each sequence: short convolutions, Mamba (SSD) and delta rules.

A scan takes a prompt in chunks, inside which tokens meet each other as in attention; a step takes one token of each
sequence and reads and writes its whole state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.elementwise import Elementwise
from chip.types import Cost, MatrixProduct, Op

FP32 = BYTES["fp32"]


@dataclass(frozen=True, slots=True)
class CausalConv(Elementwise):
    """A convolution of a few tokens along each channel."""

    taps: int = 4

    kind: ClassVar[str] = "causal_conv"

    def cost(self) -> Cost:
        moved = self.elements * BYTES[self.dtype]
        weights = self.cols * self.taps * BYTES[self.dtype]
        return Cost(2 * self.elements * self.taps, moved + weights, moved)


class CausalConvStep(CausalConv):
    """The same for one token of each sequence: the last inputs are read and written with it."""

    __slots__ = ()
    kind: ClassVar[str] = "causal_conv_step"

    def cost(self) -> Cost:
        flops, read, written = CausalConv.cost(self)
        kept = self.elements * (self.taps - 1) * BYTES[self.dtype]
        return Cost(flops, read + kept, written + kept)


@dataclass(frozen=True, slots=True)
class StateScan(MatrixProduct):
    """A prompt through states, in chunks of tokens.

    A head has `key_dim` x `head_dim` values; within a chunk tokens meet each other, between chunks the state is handed
    on. `groups` of heads share keys and queries; a delta rule (`delta`) also
    solves for what each token changes."""

    tokens: int
    heads: int
    head_dim: int
    key_dim: int
    groups: int = 1
    chunk: int = 256
    delta: bool = False
    state_dtype: str = "fp32"
    dtype: str = "bf16"

    kind: ClassVar[str] = "state_scan"
    KERNELS: ClassVar[int] = 5  # sums of decays, states of chunks, their passing on, products within chunks, the result

    def cost(self) -> Cost:
        of_head, width = self.head_dim * self.key_dim, BYTES[self.dtype]
        within = self.chunk * (self.groups * self.key_dim + self.heads * self.head_dim)  # half of it is masked
        between = 4 * self.heads * of_head
        solved = self.chunk * self.heads * (self.key_dim + self.head_dim) if self.delta else 0
        states = self.heads * of_head * FP32 / self.chunk  # written once and read once
        values = self.heads * self.head_dim + 2 * self.groups * self.key_dim + self.heads
        return Cost(
            self.tokens * (within + between + solved), self.tokens * (values * width + states),
            self.tokens * (self.heads * self.head_dim * width + states),
        )  # fmt: skip

    @property
    def counted_flops(self) -> float:
        """Of whole chunks, nothing masked."""
        tokens = -(-self.tokens // self.chunk) * self.chunk
        met = 2 * self.chunk * (self.groups * self.key_dim * (2 if self.delta else 1) + self.heads * self.head_dim)
        return tokens * (met + 4 * self.heads * self.head_dim * self.key_dim)


@dataclass(frozen=True, slots=True)
class StateStep(Op):
    """One token of each sequence through its state.

    `rows` sequences, whose states are read and written whole. A delta rule (`delta`) has a kernel of its own.
    """

    rows: int
    heads: int
    head_dim: int
    key_dim: int
    groups: int = 1
    delta: bool = False
    state_dtype: str = "fp32"
    dtype: str = "bf16"

    kind: ClassVar[str] = "state_step"

    def cost(self) -> Cost:
        states = self.rows * self.heads * self.head_dim * self.key_dim
        values = self.rows * (self.heads * self.head_dim + 2 * self.groups * self.key_dim + self.heads)
        kept, width = states * BYTES[self.state_dtype], BYTES[self.dtype]
        return Cost(6 * states, kept + values * width, kept + self.rows * self.heads * self.head_dim * width)
