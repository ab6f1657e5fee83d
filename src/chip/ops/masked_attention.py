"""Attention under a mask, over caches of fixed size and where torch's fused attention knows no window."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops import BaseTime, blend
from chip.ops.attention import AnyAttention, Attention, Form, Sizes, place_of, single
from chip.ops.attention_tiles import WHOLE_HEADS
from chip.types import ChipError, Cost, Seq

TILE = 128  # queries and keys that cuDNN's kernels take at a time
SPARE = 64  # slots of a cache beyond the prompt
MASK_PIECE = 2  # elements of a mask's row that are read at once: where a row has an odd number, kernels are slower
ODD = 6.0  # how far apart such caches lie from others


def with_spare(batch: int, tokens: int) -> Sizes:
    return batch, tokens, tokens + SPARE


@dataclass(frozen=True, slots=True)
class MaskedBase(BaseTime):
    """Heads copied for each query of a group, which takes as long as writing them does beside reading each once. Then
    whole waves of blocks, each with the queries of one head, or of single tokens as many blocks a head as SMs are left
    for: a block takes its keys in at its own rate, and all blocks at the memory's."""

    copy_bytes_per_s: float = 1.2e12
    copy_floor_s: float = 6e-6  # of the copies' kernels
    block_s: float = 1e-6  # of one block of queries, beside its keys
    block_bytes_per_s: float = 5e10  # at which one block takes in keys and values
    sharp: float = 3.0  # of the two rates: 1 where their times add

    def seconds(self, op: MaskedAttention) -> float:
        width, d, sms = BYTES[op.dtype], op.head_dim, self.sm_count
        padded = next((whole for whole in WHOLE_HEADS if d <= whole), d)
        cached, copied = (2 * op.batch * heads * op.kv_len * d * width for heads in (op.kv_heads, op.heads))
        blocks = -(-op.q_len // TILE) * op.batch * op.heads
        waves, block_s = ceil(blocks / sms), 2 * op.kv_len * padded * width / self.block_bytes_per_s
        if op.q_len > 1:
            block_s = max(block_s, sms * 4 * TILE * padded * -(-op.kv_len // TILE) * TILE / self.flop_per_s)
        else:
            block_s /= max(1, sms // blocks)
        copies_s = self.copy_floor_s + copied / self.copy_bytes_per_s + cached / self.bytes_per_s if op.copies else 0.0
        read = 2 * op.batch * op.heads * (op.kv_len + op.q_len) * d * width  # a head for all is read by each
        attending_s = blend(read / self.bytes_per_s, waves * block_s, self.sharp)
        return self.floor_s + copies_s + self.block_s * waves + attending_s


@dataclass(frozen=True, slots=True)
class MaskedAttention(AnyAttention):
    """Attention under a mask over a cache of fixed size (HF StaticCache).

    Key and value heads are copied once for each query head of their group; where there is one for all, none is. The
    mask is turned into numbers that are added to the scores, and every query meets every slot of the cache: neither
    causality nor an unused tail saves work.
    """

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    q_len: int
    kv_len: int  # slots of the cache
    v_head_dim: int = 0  # 0: as head_dim
    dtype: str = "bf16"

    kind: ClassVar[str] = "masked_attention"

    @property
    def KERNELS(self) -> int:  # type: ignore[override]
        """Three turn the mask into numbers, one attends; keys and values are copied by one each."""
        return 6 if self.copies else 4

    def check(self) -> None:
        if self.heads % self.kv_heads:
            raise ChipError(f"masked_attention: heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.q_len > self.kv_len:
            raise ChipError(
                f"masked_attention: kv_len {self.kv_len} counts every slot, so it is at least q_len {self.q_len}"
            )

    def over(self, seq: Seq) -> MaskedAttention:
        return self.sized(seq.count, seq.new, seq.slots or seq.new + seq.past)

    def sized(self, batch: int, q_len: int, kv_len: int) -> MaskedAttention:
        heads = (self.heads, self.kv_heads, self.head_dim)
        return MaskedAttention(batch, *heads, q_len, kv_len, self.v_head_dim, self.dtype)

    def cost(self) -> Cost:
        width = BYTES[self.dtype]
        both = self.head_dim + (self.v_head_dim or self.head_dim)
        slots = self.batch * self.kv_len
        queries = self.batch * self.q_len * self.heads
        cached, met = slots * self.kv_heads * both, slots * self.heads * both
        copied = met if self.copies else 0
        mask = self.batch * self.q_len * self.kv_len
        return Cost(
            2 * self.batch * self.heads * self.q_len * self.kv_len * both,
            (queries * self.head_dim + cached + copied + mask) * width + mask,
            (queries * (both - self.head_dim) + copied + mask) * width,
        )

    @property
    def copies(self) -> bool:
        """Whether heads are copied: one for all is only looked at by each."""
        return 1 < self.kv_heads < self.heads

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return MaskedBase

    def place(self) -> tuple[float, ...]:
        """The rows of a mask are as long as the cache: where that is odd, they cannot be read in pairs. Heads that are
        copied are other kernels."""
        return *place_of(self), float(self.copies), 0.0 if self.kv_len % MASK_PIECE else ODD

    @property
    def alignment(self) -> float:
        """Of single tokens as at its best."""
        return 0.0 if self.kv_len % MASK_PIECE and self.q_len > 1 else ODD

    def aligned(self, alignment: float) -> tuple[float, ...]:
        return (*self.place()[:-1], alignment) if self.q_len > 1 else self.place()

    def like_measured(self) -> MaskedAttention | None:
        """Larger heads take other kernels."""
        return None if self.v_head_dim not in (0, self.head_dim) or self.head_dim > WHOLE_HEADS[-1] else self

    def form(self) -> Form | None:
        """As that of plain attention. A prompt is looked up over a cache with SPARE slots."""
        if self.like_measured() is None:
            return None
        return (single, (self.batch, self.kv_len)) if self.q_len == 1 else (with_spare, (self.batch, self.q_len))


@dataclass(frozen=True, slots=True)
class SlidingAttention(MaskedAttention):
    """As it stands in a program whose sequences are not placed yet: over a cache of no more slots than its window."""

    window: int = 1

    def over(self, seq: Seq) -> MaskedAttention:
        """Tokens beyond the window are met beside what the cache still has of it."""
        total = seq.new + seq.past
        slots = min(seq.slots or total, self.window)
        return self.sized(seq.count, seq.new, slots if total <= slots else min(seq.past, slots - 1) + seq.new)


class WindowedAttention(Attention):
    """As it stands in a program whose sequences are not placed yet: torch's fused attention knows no window, so a
    prompt that outgrows it is met under a mask (HF DynamicCache)."""

    __slots__ = ()

    def over(self, seq: Seq) -> Attention | MaskedAttention:  # type: ignore[override]
        keys = seq.new + seq.past
        if seq.new == 1 or keys <= self.window:
            return Attention.over(self, seq)
        return MaskedAttention(
            seq.count, self.heads, self.kv_heads, self.head_dim, seq.new, keys, self.v_head_dim, self.dtype
        )
