"""What attention operators of several kernels share: their cost is that of their parts, one kernel each.

The scores of every query with every key are written to memory and passed over again and again: neither causality nor
a window saves work, but keys that have left a sliding cache are not there.
"""

from __future__ import annotations

from math import log2
from typing import ClassVar, Self

from chip.dtypes import BYTES
from chip.ops.attention import DECODE, Attention, unaligned_keys, visible_keys
from chip.ops.base_time import BaseTime, SeriesBase
from chip.ops.bmm import Bmm
from chip.ops.pointwise import Pointwise
from chip.records import replace
from chip.types import Cost, Op, Seq

ALIGNED = 8  # keys: multiples of it, other even numbers and odd numbers take three kernels, ...
BEST, EVEN, ODD = 4.0, 2.0, 0.0  # ... which are so far apart among the points
KINDS = ("alibi_attention", "broadcast_attention", "float_attention", "sink_attention")  # that are measured as a whole


class Composed(Attention):
    __slots__ = ()
    KEY_PIECE: ClassVar[int] = ALIGNED
    remark = unaligned_keys

    def parts(self) -> tuple[Op, ...]:
        raise NotImplementedError

    def over(self, seq: Seq) -> Self:
        """As attention under a mask: over all slots of a cache of fixed size, or those of a window and the prompt."""
        total = seq.new + seq.past
        keys = seq.slots or total
        if seq.slots and self.window:
            slots = min(seq.slots, self.window)
            keys = slots if total <= slots else min(seq.past, slots - 1) + seq.new
        axes = (seq.count, self.heads, self.kv_heads, self.head_dim, seq.new, keys)
        return type(self)(*axes, self.causal, self.window, self.v_head_dim, self.dtype)

    def cost(self) -> Cost:
        """FLOPs are those of the products, as of any attention."""
        parts = self.parts()
        costs = [part.cost() for part in parts]
        return Cost(
            sum(part.counted_flops for part in parts),
            sum(c.read_bytes for c in costs),
            sum(c.write_bytes for c in costs),
        )

    @property
    def keys(self) -> int:
        return visible_keys(self.q_len, self.kv_len, self.causal, self.window)

    @property
    def score_rows(self) -> int:
        return self.batch * self.heads * self.q_len

    @property
    def scores(self) -> int:
        return self.score_rows * self.keys

    @property
    def wide(self) -> int:
        """Elements of its dtype in one of fp32."""
        return int(BYTES["fp32"] / BYTES[self.dtype])

    def product(self, dtype: str) -> Bmm:
        """Queries with keys."""
        return Bmm(self.batch * self.heads, self.q_len, self.keys, self.head_dim, dtype)

    def weighted(self) -> Bmm:
        """Scores with values."""
        return Bmm(self.batch * self.heads, self.q_len, self.v_head_dim or self.head_dim, self.keys, self.dtype)

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return SeriesBase

    def place(self) -> tuple[float, ...]:
        queries = log2(self.q_len) / 2 + DECODE if self.q_len > 1 else 0.0
        return log2(self.batch * self.heads) / 2, queries, log2(self.keys) / 2, log2(self.head_dim), self._alignment()

    def _alignment(self) -> float:
        return BEST if self.keys % ALIGNED == 0 else ODD if self.keys % 2 else EVEN

    def alignments(self) -> tuple[float, ...]:
        return (BEST,) if self.keys % ALIGNED == 0 else (BEST, self._alignment())

    def aligned(self, alignment: float | None) -> tuple[float, ...]:
        return self.place() if alignment is None else (*self.place()[:-1], alignment)

    def lengths(self) -> tuple[tuple[Self, float], ...]:
        """One length for each of the three kernels, and its share of the steps while a context grows key by key."""
        first = self.kv_len - self.kv_len % ALIGNED
        return tuple((replace(self, kv_len=first + n), part) for n, part in ((ALIGNED, 1 / 8), (2, 3 / 8), (1, 1 / 2)))

    def like_measured(self) -> Self | None:
        return self

    @property
    def has_kernel(self) -> bool:
        return True

    def merged(self) -> Pointwise:
        """The result copied from heads before tokens to tokens before heads."""
        values = self.score_rows * (self.v_head_dim or self.head_dim)
        return Pointwise(values, values, self.dtype)
