"""Attention of a prompt over keys and values expanded from a latent: keys are wider than values. As vLLM runs it; few
new tokens attend to the latent itself (`chip.ops.mla`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ClassVar, Self

from chip.ops.attention import Attention
from chip.ops.attention_kernels import TiledBase
from chip.ops.base_time import BaseTime
from chip.ops.mla import Mla
from chip.records import dataclass, replace
from chip.types import Op, Seq

ABSORBED_TOKENS = 512  # of a sequence up to which they do on Hopper (FlashAttnMLAMetadataBuilder in vLLM 0.26)
FEW = Seq(2, 0, 1)  # such tokens


@dataclass(frozen=True, slots=True)
class MlaPrompt(Attention):
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

    def remark(self, seq: Seq, is_measured: Callable[[Op], bool]) -> str:
        if seq.new == 1 or isinstance(self.placing(is_measured)(seq), MlaPrompt):
            return ""
        return (
            f"prompts of up to {ABSORBED_TOKENS} tokens attend to the latent itself, longer ones to expanded keys: "
            "measured points show that this takes longer, so that a little more may take less time"
        )

    def _at(self, batch: int, q_len: int, kv_len: int, window: int) -> Self:
        return replace(self, batch=batch, q_len=q_len, kv_len=kv_len)

    @property
    def has_kernel(self) -> bool:
        return True

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return TiledBase
