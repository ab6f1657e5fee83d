"""Attention that HF's modules spell out in several kernels: its cost is that of its parts, one kernel each.

The scores of every query with every key are written to memory and passed over again and again: neither causality nor
a window saves work, but keys that have left a sliding cache are not there.
"""

from __future__ import annotations

from dataclasses import replace
from math import log2
from typing import ClassVar, Self

from chip.dtypes import BYTES
from chip.ops import BaseTime, SeriesBase
from chip.ops.attention import DECODE, Attention, visible_keys
from chip.ops.elementwise import Softmax
from chip.ops.linear import Bmm
from chip.ops.other import Pointwise
from chip.types import Cost, Op, Seq

ALIGNED = 8  # keys: multiples of it, other even numbers and odd numbers take three kernels, ...
BEST, EVEN, ODD = 4.0, 2.0, 0.0  # ... which are so far apart among the points
TILE_KEYS = 64  # that products which add to something take at a time
KINDS = ("alibi_attention", "broadcast_attention", "float_attention", "sink_attention")  # that are measured as a whole


class Composed(Attention):
    __slots__ = ()

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
        return log2(self.batch * self.heads) / 2, queries, log2(self.keys) / 2, log2(self.head_dim), self.alignment

    @property
    def alignment(self) -> float:
        return BEST if self.keys % ALIGNED == 0 else ODD if self.keys % 2 else EVEN

    def aligned(self, alignment: float) -> tuple[float, ...]:
        return (*self.place()[:-1], alignment)

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


class AlibiBase(SeriesBase):
    """Products read keys, values and scores in whole tiles."""

    __slots__ = ()

    def seconds(self, op: AlibiAttention) -> float:  # type: ignore[override]
        read = op.product(op.dtype).cost().read_bytes + op.weighted().cost().read_bytes
        more = -(-op.keys // TILE_KEYS) * TILE_KEYS / op.keys - 1
        return SeriesBase.seconds(self, op) + more * read / self.bytes_per_s


class AlibiAttention(Composed):
    """Attention with linear biases as HF's BLOOM spells it: biases spread over the scores, products added to them, the
    mask added, softmax in fp32, products with the values, heads merged."""

    __slots__ = ()
    kind: ClassVar[str] = "alibi_attention"
    KERNELS: ClassVar[int] = 8

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return AlibiBase

    def parts(self) -> tuple[Op, ...]:
        n, wide, dtype = self.scores, self.wide, self.dtype
        return (
            Pointwise(self.batch * self.heads * self.keys + n, n, dtype),  # biases spread; the product reads them
            self.product(dtype),
            Pointwise(n, n, dtype),  # mask added
            Pointwise(n, wide * n, dtype),  # widened
            Softmax(self.score_rows, self.keys, "fp32"),
            Pointwise(wide * n, n, dtype),  # narrowed
            self.weighted(),
            self.merged(),
        )


class BroadcastAttention(Composed):
    """Attention of many heads to one key head, which no fused kernel takes.

    So torch runs it where the caller does not say that heads are grouped. Everything in fp32: queries, keys and values
    widened, queries and keys scaled, keys and values copied for every head, scores masked and normalised, rows without
    a key looked for, result and scores narrowed, heads merged.
    """

    __slots__ = ()
    kind: ClassVar[str] = "broadcast_attention"
    KERNELS: ClassVar[int] = 22

    @property
    def compute(self) -> str:
        return "matmul_fp32"

    def parts(self) -> tuple[Op, ...]:
        n, rows, wide, dtype = self.scores, self.score_rows, self.wide, self.dtype
        queries, keys = rows * self.head_dim, self.batch * self.kv_heads * self.keys * self.head_dim
        widened = Pointwise(keys, wide * keys, dtype)
        copied = Pointwise(keys, keys * self.heads // self.kv_heads, "fp32")
        of_mask = self.batch * self.q_len * self.keys
        return (
            *[Pointwise(0, 1, dtype)] * 2,  # what hides and what does not
            Pointwise(of_mask // 2, of_mask, dtype),  # the mask, one byte each, made to be added
            Pointwise(queries, wide * queries, dtype),
            widened,
            widened,
            Pointwise(queries, queries, "fp32"),  # scaled
            Pointwise(keys, keys, "fp32"),
            Pointwise(queries, queries, "fp32"),  # laid out by head
            copied,
            self.product("fp32"),
            Pointwise(n, n, "fp32"),  # mask added
            Softmax(rows, self.keys, "fp32"),
            Pointwise(n, n // 4, "fp32"),  # whether a score is hidden, one byte each
            Pointwise(n // 4, rows, "fp32"),  # whether all of a row are
            Pointwise(0, 1, "fp32"),
            Pointwise(n, n, "fp32"),  # such rows set to zero
            copied,
            Bmm(self.batch * self.heads, self.q_len, self.head_dim, self.keys, "fp32"),
            Pointwise(wide * queries, queries, dtype),
            Pointwise(wide * n, n, dtype),
            self.merged(),
        )


class FloatAttention(Composed):
    """Attention as HF's GPT-J spells it: queries and keys widened, multiplied, scaled, masked and normalised in fp32,
    then narrowed for the product with the values, heads merged."""

    __slots__ = ()
    kind: ClassVar[str] = "float_attention"
    KERNELS: ClassVar[int] = 9

    def parts(self) -> tuple[Op, ...]:
        n, wide, dtype = self.scores, self.wide, self.dtype
        queries = self.score_rows * self.head_dim
        keys = self.batch * self.heads * self.keys * self.head_dim
        return (
            Pointwise(queries, wide * queries, dtype),
            Pointwise(keys, wide * keys, dtype),
            self.product("fp32"),
            Pointwise(n, n, "fp32"),  # scaled
            Pointwise(n, n, "fp32"),  # mask added
            Softmax(self.score_rows, self.keys, "fp32"),
            Pointwise(wide * n, n, dtype),  # narrowed
            self.weighted(),
            self.merged(),
        )


class SinkAttention(Composed):
    """Attention with sinks as HF's gpt-oss spells it: heads repeated, products scaled and masked, a sink joined to each
    row, the largest subtracted, softmax, the sink left out of the products with the values, heads merged."""

    __slots__ = ()
    kind: ClassVar[str] = "sink_attention"
    KERNELS: ClassVar[int] = 11

    def parts(self) -> tuple[Op, ...]:
        n, rows, dtype = self.scores, self.score_rows, self.dtype
        cached = self.batch * self.kv_heads * self.keys * self.head_dim
        repeated = Pointwise(cached, cached * (self.heads // self.kv_heads), dtype)
        joined = n + rows
        return (
            repeated,  # keys
            repeated,  # values
            self.product(dtype),
            Pointwise(n, n, dtype),  # scaled
            Pointwise(n, n, dtype),  # mask added
            Pointwise(n, joined, dtype),  # sinks joined
            Pointwise(joined, rows, dtype),  # the largest of each row
            Pointwise(joined, joined, dtype),  # subtracted
            Softmax(rows, self.keys + 1, dtype),
            self.weighted(),
            self.merged(),
        )


class KvJoin(Composed):
    """Keys and values copied into new tensors with one token more: a cache that grows by joining (HF DynamicCache)."""

    __slots__ = ()
    kind: ClassVar[str] = "kv_join"
    LEDGER: ClassVar[str] = "pointwise"
    KERNELS: ClassVar[int] = 2

    def parts(self) -> tuple[Op, ...]:
        cached = self.batch * self.kv_heads * self.keys
        return tuple(
            Pointwise(cached * width, cached * width, self.dtype)
            for width in (self.head_dim, self.v_head_dim or self.head_dim)
        )

    @property
    def compute(self) -> str:
        return Pointwise(1, 1).compute  # copies multiply nothing

    @property
    def counted_flops(self) -> float:
        return 0.0
