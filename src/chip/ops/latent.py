"""Attention over a latent cache (DeepSeek), absorbed, and of prompts over keys and values expanded from the latent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

from chip.dtypes import BYTES
from chip.ops import BaseTime
from chip.ops.attention import Attention, visible_keys
from chip.ops.attention_tiles import LatentBase, TiledBase
from chip.ops.attention_variants import Fp8Attention
from chip.types import ChipError, Cost, Op, Seq

ABSORBED_TOKENS = 512  # of a sequence up to which they do on Hopper (FlashAttnMLAMetadataBuilder in vLLM 0.26)
FEW = Seq(2, 0, 1)  # such tokens


class Mla(Attention):
    """Multi-head latent attention in its absorbed form (DeepSeek): every head reads one shared latent cache.

    A key is the latent and a few rotated values (`head_dim` of both), a value the latent itself (`v_head_dim`): what is
    cached is read once for both. The products that absorb the up-projections into query and output are separate batched
    products in the program.
    """

    __slots__ = ()
    kind: ClassVar[str] = "mla"

    def check(self) -> None:
        Attention.check(self)
        if self.v_head_dim > self.head_dim:
            raise ChipError(
                f"mla: a value is part of its key: v_head_dim {self.v_head_dim} is more than {self.head_dim}"
            )

    def cost(self) -> Cost:
        apart = Attention.cost(self)  # keys and values each read by themselves
        keys = visible_keys(self.q_len, self.kv_len, self.causal, self.window)
        values = self.batch * keys * self.kv_heads * (self.v_head_dim or self.head_dim) * BYTES[self.dtype]
        return apart._replace(read_bytes=apart.read_bytes - values)

    @property
    def key_value_bytes(self) -> float:
        return self.head_dim * self.cache_width_bytes

    @property
    def has_kernel(self) -> bool:
        return True

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return LatentBase


@dataclass(frozen=True, slots=True)
class MlaPrompt(Attention):
    """Attention of a prompt over keys and values expanded from a latent: keys are wider than values. As vLLM runs it;
    few new tokens attend to the latent itself (`mla`)."""

    latent: int = 512
    rope_dim: int = 64

    kind: ClassVar[str] = "mla_prompt"

    def over(self, seq: Seq) -> Attention:  # type: ignore[override]
        if seq.new > ABSORBED_TOKENS:
            return Attention.over(self, seq)
        width, total = self.latent + self.rope_dim, seq.new + seq.past
        return Mla(seq.count, self.heads, 1, width, seq.new, total, self.causal, 0, self.latent, self.dtype)

    def placing(self, is_measured: Callable[[Op], bool]) -> Callable[[Seq], Op]:
        """Other attention over a latent than FlashAttention-3's expands it, however few tokens are new."""
        return self.over if is_measured(self.over(FEW)) else partial(Attention.over, self)

    def _at(self, batch: int, q_len: int, kv_len: int, window: int) -> Self:
        return replace(self, batch=batch, q_len=q_len, kv_len=kv_len)

    @property
    def has_kernel(self) -> bool:
        return True

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return TiledBase


@dataclass(frozen=True, slots=True)
class CompressedAttention(Mla):
    """Attention over the latest `window` tokens, and over entries of `ratio` older ones each (DeepSeek V4): the best
    `best` of them, or all (0). A key is its own value. It stands in programs without its sequences only."""

    ratio: int = 0
    best: int = 0

    def over(self, seq: Seq) -> Mla:  # type: ignore[override]
        total = seq.past + seq.new
        entries = (seq.past + (seq.new + 1) // 2) // self.ratio if self.ratio else 0  # in the mean of the new tokens
        seen = min(total, self.window + (min(entries, self.best) if self.best else entries))
        return Mla(
            seq.count, self.heads, 1, self.head_dim, seq.new, total, True, seen if seen < total else 0,
            self.v_head_dim, self.dtype,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class IndexedEntries(Fp8Attention):
    """Scores of the entries of a compressed cache, one for `ratio` tokens."""

    ratio: int = 1

    def over(self, seq: Seq) -> Fp8Attention:  # type: ignore[override]
        entries = max(1, (seq.past + seq.new) // self.ratio)
        new = min(seq.new, entries)  # a query sees the entries before it: as many pairs, in a square that is smaller
        sizes = (seq.count, self.heads, 1, self.head_dim, new, entries)
        scores = Fp8Attention(*sizes, True, 0, self.v_head_dim, self.dtype)
        return scores if new == seq.new else replace(scores, batch=seq.count * (-(-seq.new // new)))
