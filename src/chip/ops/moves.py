"""Tokens in and out, positions and the cache: rows gathered from a table, the next token chosen, rotary positions
(applied, applied and stored, spelled out as HF does, and their table of angles), keys and values stored."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import Any, ClassVar

from chip.dtypes import BYTES
from chip.ops import BaseTime
from chip.ops.elementwise import FP32, Elementwise, OverRows, RowBase, define
from chip.types import Cost, Seq

INDEX_BYTES = 8
FEW_ROWS = 16  # that torch gathers by a kernel which walks over them


@dataclass(frozen=True, slots=True)
class Embedding(OverRows):
    """Row gather from an embedding table: one row of `cols` values for each of `rows` tokens."""

    rows: int
    cols: int
    dtype: str = "bf16"

    kind: ClassVar[str] = "embedding"

    def cost(self) -> Cost:
        moved = self.rows * self.cols * BYTES[self.dtype]
        return Cost(0, moved + self.rows * INDEX_BYTES, moved)

    def place(self) -> tuple[float, ...]:
        return log2(self.rows), log2(self.cols), 3.0 * (self.rows > FEW_ROWS)


@dataclass(frozen=True, slots=True)
class Sampling(OverRows):
    """Greedy choice of the next token: the largest of `cols` logits in each row."""

    rows: int
    cols: int
    dtype: str = "bf16"

    kind: ClassVar[str] = "sampling"
    LEDGER: ClassVar[str] = "sampling"
    # 256 values and more for each of 512 threads: a row is shared by several blocks
    EDGES: ClassVar[tuple[int, ...]] = (256 * 512 - 1,)

    def cost(self) -> Cost:
        elements = self.rows * self.cols
        return Cost(elements, elements * BYTES[self.dtype], self.rows * INDEX_BYTES)


class KvAppend(Elementwise):
    """Write of the new tokens' keys and values into the cache: `cols` values a token (key and value, all heads)."""

    __slots__ = ()
    kind: ClassVar[str] = "kv_append"
    LEDGER: ClassVar[str] = "kv_append"
    FLOPS: ClassVar[int] = 0


class KvAppendFp8(KvAppend):
    """Write of the new tokens' keys and values into an fp8 cache: rounded on the way, `cols` values a token."""

    __slots__ = ()
    kind: ClassVar[str] = "kv_append_fp8"

    def cost(self) -> Cost:
        return Cost(self.elements, self.elements * BYTES[self.dtype], self.elements * BYTES["fp8"])


class KvRoll(Elementwise):
    """A new token's keys and values into a full sliding window of fixed size (HF StaticCache): keys and values are each
    rolled by a token into a new tensor, the last slot is written, and all of it is copied back to where it was.

    `rows` are the slots of all sequences, `cols` the values of a slot (key and value, all heads).
    """

    __slots__ = ()
    kind: ClassVar[str] = "kv_roll"
    LEDGER: ClassVar[str] = "kv_append"
    FLOPS: ClassVar[int] = 0
    READS: ClassVar[int] = 2
    WRITES: ClassVar[int] = 2
    KERNELS: ClassVar[int] = 6


@dataclass(frozen=True, slots=True)
class SlidingAppend(KvRoll):
    """As it stands in a program whose sequences are not placed yet: a window with room is appended to."""

    window: int = 1
    OF_SEQUENCES: ClassVar[bool] = True

    def over(self, seq: Seq) -> KvAppend | KvRoll:
        if seq.new == 1 and seq.past >= self.window:
            return KvRoll(seq.count * self.window, self.cols, self.dtype)
        stored = min(seq.new, self.window)  # of a prompt longer than the window, its end
        return KvAppend(seq.count * stored, self.cols, self.dtype)


@dataclass(frozen=True, slots=True)
class Rope(OverRows):
    """Rotary position embedding of queries and keys: each pair of values is rotated by its position's angle."""

    rows: int  # tokens
    heads: int  # query and key heads together
    head_dim: int  # the rotated part of each head
    dtype: str = "bf16"

    kind: ClassVar[str] = "rope"

    def cost(self) -> Cost:
        elements = self.rows * self.heads * self.head_dim
        width = BYTES[self.dtype]
        # 4 products and 2 sums for each pair; one cosine and one sine for each pair of a token, shared by its heads
        return Cost(3 * elements, (elements + self.rows * self.head_dim) * width, elements * width)

    @property
    def cols(self) -> int:
        return self.heads * self.head_dim


class RopeComposed(Rope):
    """Rotary positions as HF's modules spell them: x cos + rotate_half(x) sin, five kernels for queries, five for
    keys."""

    __slots__ = ()
    kind: ClassVar[str] = "rope_composed"
    KERNELS: ClassVar[int] = 10

    def cost(self) -> Cost:
        elements, width = self.rows * self.heads * self.head_dim, BYTES[self.dtype]
        # times cos, minus half, join the halves, times sin, add
        read = elements * (1 + 0.5 + 1 + 1 + 2) + 2 * self.rows * self.head_dim
        written = elements * (1 + 0.5 + 1 + 1 + 1)
        return Cost(3 * elements, read * width, written * width)


RopeJoin = define(
    "rope_join",
    "The rotated part of each head joined with the rest of it: a copy of all queries, and one of all keys.\n\n"
    "Some families join where the rest is empty too. Columns are the values of all query and key heads of a token.",
    KERNELS=2,
    FLOPS=0,
)


class RotaryTable(Elementwise):
    """Cosines and sines of a step's positions, as HF computes them. Once a step, in fp32, `cols` angles for each
    token."""

    __slots__ = ()
    kind: ClassVar[str] = "rotary_table"
    KERNELS: ClassVar[int] = 10

    def cost(self) -> Cost:
        elements, width = self.rows * self.cols, BYTES[self.dtype]
        # half of them by an outer product, joined twice over; cosine and sine, both scaled, both narrowed
        return Cost(6 * elements, 7.5 * elements * FP32, elements * (5.5 * FP32 + 2 * width))


class StoreBase(RowBase):
    """Rows are programs."""

    __slots__ = ()

    def fixed(self, op: Any) -> tuple[int, ...]:
        return (op.cols // op.kv_heads,)

    def amount(self, op: Any) -> int:
        return int(op.programs)


@dataclass(frozen=True, slots=True)
class RopeStore(OverRows):
    """Rotary positions and the write to pages.

    One pass over the merged projection, norms of heads included. A program takes one token and one key head with the
    queries that share it; beyond a few thousand programs their number is what counts, not their bytes.
    """

    rows: int  # tokens
    heads: int  # of queries
    kv_heads: int
    head_dim: int
    dtype: str = "bf16"

    kind: ClassVar[str] = "rope_store"

    def cost(self) -> Cost:
        turned = self.rows * (self.heads + self.kv_heads) * self.head_dim
        moved = self.rows * self.cols * BYTES[self.dtype]
        table = self.rows * self.head_dim * FP32  # a cosine and a sine for each pair
        return Cost(3 * turned, moved + table, moved)

    @property
    def cols(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    @property
    def programs(self) -> int:
        return self.rows * self.kv_heads

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return StoreBase

    def place(self) -> tuple[float, ...]:
        return log2(self.programs), log2(self.cols / self.kv_heads)
