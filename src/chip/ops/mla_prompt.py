"""Attention of a prompt over keys and values expanded from a latent: keys are wider than values. As vLLM runs it; few
new tokens attend to the latent itself (`chip.ops.mla`)."""

from __future__ import annotations

from typing import ClassVar, Self

from chip.ops.attention import Attention
from chip.ops.attention_kernels import TiledBase
from chip.ops.base_time import BaseTime
from chip.ops.mla import Mla
from chip.records import dataclass, replace
from chip.types import Seq

ABSORBED_TOKENS = (
    512  # new tokens of a sequence up to which they do on Hopper (FlashAttnMLAMetadataBuilder in vLLM 0.26)
)


@dataclass(frozen=True, slots=True)
class MlaPrompt(Attention):
    latent: int = 512
    rope_dim: int = 64

    kind: ClassVar[str] = "mla_prompt"

    def over(self, seq: Seq) -> Attention:  # type: ignore[override]
        if seq.new > ABSORBED_TOKENS:
            return self.expanded(seq)
        width, total = self.latent + self.rope_dim, seq.new + seq.past
        return Mla(seq.count, self.heads, 1, width, seq.new, total, self.causal, 0, self.latent, self.dtype)

    def expanded(self, seq: Seq) -> Self:
        """However few tokens are new: what other attention over a latent than FlashAttention-3's does."""
        return self.sized(seq.count, seq.new, seq.new + seq.past)

    def sized(self, batch: int, q_len: int, kv_len: int) -> Self:
        return replace(self, batch=batch, q_len=q_len, kv_len=kv_len)

    @property
    def has_kernel(self) -> bool:
        return True

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return TiledBase
