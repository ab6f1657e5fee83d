"""Attention under a mask over a cache of fixed size (HF StaticCache).

Key and value heads are copied once for each query head of their group; where there is one for all, none is. The mask is
turned into numbers that are added to the scores, and every query meets every slot of the cache: neither causality nor
an unused tail saves work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.attention import Attention
from chip.types import ChipError, Cost, Op, Seq


@dataclass(frozen=True, slots=True)
class MaskedAttention(Op):
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    q_len: int
    kv_len: int  # slots of the cache
    v_head_dim: int = 0  # 0: as head_dim
    dtype: str = "bf16"

    kind: ClassVar[str] = "masked_attention"
    KERNELS: ClassVar[int] = 6

    def check(self) -> None:
        if self.heads % self.kv_heads:
            raise ChipError(f"masked_attention: heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.q_len > self.kv_len:
            raise ChipError(
                f"masked_attention: kv_len {self.kv_len} counts every slot, so it is at least q_len {self.q_len}"
            )

    def over(self, seq: Seq) -> MaskedAttention:
        return self._meeting(seq, seq.slots or seq.new + seq.past)

    def _meeting(self, seq: Seq, keys: int) -> MaskedAttention:
        """The same attention for other sequences, each over so many keys."""
        return MaskedAttention(
            seq.count, self.heads, self.kv_heads, self.head_dim, seq.new, keys, self.v_head_dim, self.dtype
        )

    def cost(self) -> Cost:
        width = BYTES[self.dtype]
        both = self.head_dim + (self.v_head_dim or self.head_dim)
        slots = self.batch * self.kv_len
        queries = self.batch * self.q_len * self.heads
        kept, met = slots * self.kv_heads * both, slots * self.heads * both
        copied = met if self.copies else 0
        mask = self.batch * self.q_len * self.kv_len
        return Cost(
            2 * self.batch * self.heads * self.q_len * self.kv_len * both,
            (queries * self.head_dim + kept + copied + mask) * width + mask,
            (queries * (both - self.head_dim) + copied + mask) * width,
        )

    @property
    def copies(self) -> bool:
        """Whether heads are copied: one for all is only looked at by each."""
        return 1 < self.kv_heads < self.heads

    @property
    def compute(self) -> str:
        return "matmul_" + self.dtype

    @property
    def counted_flops(self) -> float:
        return self.cost().flops


@dataclass(frozen=True, slots=True)
class SlidingAttention(MaskedAttention):
    """As it stands in a program whose sequences are not placed yet: over a cache of no more slots than its window."""

    window: int = 1

    def over(self, seq: Seq) -> MaskedAttention:
        """Tokens beyond the window are met beside what the cache still has of it."""
        slots = min(seq.slots or seq.new + seq.past, self.window)
        return self._meeting(seq, slots if seq.new + seq.past <= slots else min(seq.past, slots - 1) + seq.new)


@dataclass(frozen=True, slots=True)
class WindowedAttention(Attention):
    """As it stands in a program whose sequences are not placed yet: torch's fused attention knows no window, so a
    prompt that outgrows it is met under a mask (HF DynamicCache)."""

    def over(self, seq: Seq) -> Attention | MaskedAttention:  # type: ignore[override]
        keys = seq.new + seq.past
        if seq.new == 1 or keys <= self.window:
            return Attention.over(self, seq)
        return MaskedAttention(
            seq.count, self.heads, self.kv_heads, self.head_dim, seq.new, keys, self.v_head_dim, self.dtype
        )
