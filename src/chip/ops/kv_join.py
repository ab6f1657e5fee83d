"""Keys and values copied into new tensors with one token more: a cache that grows by joining (HF DynamicCache)."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.composed import Composed
from chip.ops.pointwise import Pointwise
from chip.types import Op


class KvJoin(Composed):
    __slots__ = ()
    kind: ClassVar[str] = "kv_join"
    LEDGER: ClassVar[str] = "pointwise"
    KERNELS: ClassVar[int] = 2

    def parts(self) -> tuple[Op, ...]:
        kept = self.batch * self.kv_heads * self.keys
        return tuple(
            Pointwise(kept * width, kept * width, self.dtype)
            for width in (self.head_dim, self.v_head_dim or self.head_dim)
        )

    @property
    def compute(self) -> str:
        return Pointwise(1, 1, self.dtype).compute  # copies multiply nothing: any dtype will do

    @property
    def counted_flops(self) -> float:
        return 0.0
