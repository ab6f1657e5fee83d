"""Multi-head latent attention in its absorbed form (DeepSeek): every head reads one shared latent cache.

A key is the latent and a few rotated values (`head_dim` of both), a value the latent itself (`v_head_dim`): what is
cached is read once for both. The products that absorb the up-projections into query and output are separate batched
products in the program.
"""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.attention import Attention, visible_keys
from chip.ops.attention_kernels import LatentBase
from chip.ops.base_time import BaseTime
from chip.types import ChipError, Cost


class Mla(Attention):
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
