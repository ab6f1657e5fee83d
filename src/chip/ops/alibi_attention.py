"""Attention with linear biases as HF's BLOOM spells it: biases spread over the scores, products added to them, the mask
added, softmax in fp32, products with the values, heads merged."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.base_time import BaseTime, SeriesBase
from chip.ops.composed import Composed
from chip.ops.pointwise import Pointwise
from chip.ops.softmax import Softmax
from chip.types import Op

TILE_KEYS = 64  # that its products, which add to something, take at a time


class AlibiBase(SeriesBase):
    """Products read keys, values and scores in whole tiles."""

    __slots__ = ()

    def seconds(self, op: AlibiAttention) -> float:  # type: ignore[override]
        read = op.product(op.dtype).cost().read_bytes + op.weighted().cost().read_bytes
        more = -(-op.keys // TILE_KEYS) * TILE_KEYS / op.keys - 1
        return SeriesBase.seconds(self, op) + more * read / self.bytes_per_s


class AlibiAttention(Composed):
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
