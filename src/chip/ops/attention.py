"""Attention, and what all attention has in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log2
from typing import Any, ClassVar, Self

from chip.dtypes import BYTES
from chip.ops import BaseTime
from chip.ops.attention_flash import FlashBase, OwnBase, PagedFlashBase
from chip.ops.attention_tiles import WHOLE_HEADS, CudnnBase, TiledBase
from chip.types import ChipError, Cost, MatrixProduct, Seq

BASES: dict[str, type[BaseTime]] = {  # the others are FlashAttention-2 as torch calls it
    "fa3": TiledBase, "cudnn": CudnnBase, "fa2": PagedFlashBase, "flashinfer": PagedFlashBase, "chip": OwnBase,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PerHeadBase(BaseTime):
    """Each head of queries reads keys and values by itself, as torch's kernel does on a CPU. Before that a cache that
    grows is copied."""

    copy_bytes_per_s: float = 2e10

    def seconds(self, op: Any) -> float:
        attended, copied = op.moved_bytes()
        read_s = attended * (op.heads // op.kv_heads) / self.bytes_per_s
        seconds: float = self.floor_s + max(op.cost().flops / self.flop_per_s, read_s) + copied / self.copy_bytes_per_s
        return seconds


DECODE = 1.0  # how far a step of single tokens lies from one of several
Sizes = tuple[int, int, int]  # batch, q_len, kv_len
Form = tuple[Callable[..., Sizes], tuple[int, ...]]  # the sizes that an attention is looked up by, and what they make


def single(batch: int, keys: int) -> Sizes:
    return batch, 1, keys


def prompt(batch: int, tokens: int) -> Sizes:
    return batch, tokens, tokens


def chunk(batch: int, queries: int, keys: int) -> Sizes:
    return batch, min(queries, keys), keys


def visible_pairs(q_len: int, kv_len: int, causal: bool, window: int) -> int:
    """(query, key) pairs that attend. The i-th query (from 0) of a causal step sees kv_len - q_len + i + 1 keys."""
    if not causal:
        return q_len * kv_len
    first, last = kv_len - q_len + 1, kv_len
    if not window or last <= window:
        return q_len * (first + last) // 2
    if first >= window:
        return q_len * window
    growing = window - first  # queries that still see fewer keys than the window holds
    return growing * (first + window - 1) // 2 + (q_len - growing) * window


def visible_keys(q_len: int, kv_len: int, causal: bool, window: int) -> int:
    """Keys that any query of the step reads."""
    return min(kv_len, q_len + window - 1) if causal and window else kv_len


def place_of(op: Any) -> tuple[float, ...]:
    """By its heads and sizes."""
    queries = log2(op.q_len) / 2 + DECODE if op.q_len > 1 else 0.0
    group = log2(op.heads // op.kv_heads) / 3
    return log2(op.batch * op.heads) / 4, group, 4 * log2(op.head_dim), log2(op.kv_len) / 2, queries


class AnyAttention(MatrixProduct):
    """What all attention has in common: it is asked for by sequences, queries and keys."""

    __slots__ = ()
    OF_SEQUENCES: ClassVar[bool] = True
    LEDGER: ClassVar[str] = "attention"

    batch: int
    q_len: int
    kv_len: int

    def sized(self, batch: int, q_len: int, kv_len: int) -> Self:
        """The same heads over other sizes, all of them in sight."""
        raise NotImplementedError

    def unwindowed(self) -> Self:
        """Without its window, over the keys that are in sight; itself where all are."""
        return self

    @property
    def alignment(self) -> float:
        """What its place says of the keys' alignment; 0 where it says nothing."""
        return 0.0

    def aligned(self, alignment: float) -> tuple[float, ...]:
        """Its place if its keys were so aligned."""
        return self.place()

    def lengths(self) -> tuple[tuple[Self, float], ...]:
        """What stands for it while a context grows key by key, and its share of the steps."""
        return ((self, 1.0),)

    def form(self) -> Form | None:
        """What it is looked up by; None where no points are of such sizes."""
        return None


@dataclass(frozen=True, slots=True)
class Attention(AnyAttention):
    """Attention of q_len new tokens over kv_len tokens (past and new): MHA, GQA and MQA, causal or not, windowed or
    not.

    Causal means aligned at the end, as in a model with a cache: the last query sees every key. Only visible pairs cost
    FLOPs, so a prefill of n tokens costs exactly what its n decode steps cost.
    """

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    q_len: int
    kv_len: int
    causal: bool = True
    window: int = 0  # 0: none
    v_head_dim: int = 0  # 0: as head_dim
    dtype: str = "bf16"

    kind: ClassVar[str] = "attention"
    ON_CPU: ClassVar[type[Any]] = PerHeadBase

    def check(self) -> None:
        if self.heads % self.kv_heads:
            raise ChipError(f"attention: heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.causal and self.q_len > self.kv_len:
            raise ChipError(
                f"attention: kv_len {self.kv_len} counts past and new tokens, so it is at least q_len {self.q_len}"
            )

    def over(self, seq: Seq) -> Self:
        """The same attention for other sequences."""
        return self._at(seq.count, seq.new, seq.new + seq.past, self.window)

    def sized(self, batch: int, q_len: int, kv_len: int) -> Self:
        return self._at(batch, q_len, kv_len, 0)

    def _at(self, batch: int, q_len: int, kv_len: int, window: int) -> Self:
        return type(self)(
            batch, self.heads, self.kv_heads, self.head_dim, q_len, kv_len,
            self.causal, window, self.v_head_dim, self.dtype,
        )  # fmt: skip

    def cost(self) -> Cost:
        width = BYTES[self.dtype]
        qk, v = self.head_dim, self.v_head_dim or self.head_dim
        if self.q_len == 1:  # a decode step, the case predicted most often
            pairs = keys = min(self.kv_len, self.window) if self.window and self.causal else self.kv_len
        else:
            pairs = visible_pairs(self.q_len, self.kv_len, self.causal, self.window)
            keys = visible_keys(self.q_len, self.kv_len, self.causal, self.window)
        queries = self.batch * self.q_len * self.heads
        return Cost(
            2 * self.batch * self.heads * pairs * (qk + v),
            (queries * qk + self.batch * keys * self.kv_heads * (qk + v)) * width,
            queries * v * width,
        )

    @property
    def cache_width_bytes(self) -> float:
        """Of a key's or value's number in the cache."""
        return BYTES[self.dtype]

    @property
    def key_value_bytes(self) -> float:
        """Of a token in the cache, for each head of keys."""
        return (self.head_dim + (self.v_head_dim or self.head_dim)) * self.cache_width_bytes

    @property
    def has_kernel(self) -> bool:
        """Whether heads of its size were measured: not with values of another size, and larger ones take others."""
        return self.v_head_dim in (0, self.head_dim) and self.head_dim <= WHOLE_HEADS[-1]

    def moved_bytes(self) -> tuple[float, float]:
        """That the attention itself moves, and that are copied before it."""
        _, read, written = self.cost()
        return read + written, 0.0

    @property
    def counted_flops(self) -> float:
        width = self.head_dim + (self.v_head_dim or self.head_dim)
        keys = visible_keys(self.q_len, self.kv_len, self.causal, self.window)  # a window's cache drops what is past it
        return 2 * self.batch * self.heads * self.q_len * keys * width

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return BASES.get(kernel, FlashBase)

    def place(self) -> tuple[float, ...]:
        return place_of(self)

    def like_measured(self) -> Attention | None:
        """A single token under a window just sees fewer keys; windows over prompts were not measured."""
        if not self.has_kernel or self.q_len > self.kv_len:
            return None
        if not self.window or self.kv_len <= self.window:
            return replace(self, window=0) if self.window else self
        return replace(self, kv_len=self.window, window=0) if self.q_len == 1 else None

    def unwindowed(self) -> Self:
        if not self.window or self.kv_len <= self.window:
            return replace(self, window=0) if self.window else self
        return replace(self, window=0, kv_len=visible_keys(self.q_len, self.kv_len, self.causal, self.window))

    def form(self) -> Form | None:
        batch, q_len, kv_len = self.batch, self.q_len, self.kv_len
        if q_len == 1:
            return single, (batch, min(kv_len, self.window) if self.window else kv_len)
        if q_len > kv_len or (self.window and kv_len > self.window):
            return None
        return (prompt, (batch, q_len)) if q_len == kv_len else (chunk, (batch, q_len, kv_len))
