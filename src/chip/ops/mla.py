"""Multi-head latent attention in its absorbed form (DeepSeek): every head reads one shared latent cache.

A key is the latent and a few rotated values (`head_dim` of both), a value the latent itself (`v_head_dim`): what is
cached is read once for both. The products that absorb the up-projections into query and output are separate batched
products in the program.
"""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.attention import Attention
from chip.ops.attention_kernels import LatentBase
from chip.ops.base_time import BaseTime
from chip.types import Cost


class Mla(Attention):
    __slots__ = ()
    kind: ClassVar[str] = "mla"

    def cost(self) -> Cost:
        wide = Attention.cost(self)
        values = self.batch * self.kv_len * self.kv_heads * (self.v_head_dim or self.head_dim) * BYTES[self.dtype]
        return wide._replace(read_bytes=wide.read_bytes - values)

    @property
    def key_value_bytes(self) -> float:
        return self.head_dim * self.cache_width_bytes

    @property
    def has_kernel(self) -> bool:
        return True

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return LatentBase
