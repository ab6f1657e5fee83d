"""Tokens in and out, and the cache: rows gathered from a table, the next token chosen, keys and values stored."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.elementwise import Elementwise, OverRows
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
