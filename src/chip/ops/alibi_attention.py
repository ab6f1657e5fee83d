"""Attention with linear biases as HF's BLOOM spells it: biases spread over the scores, products added to them, the mask
added, softmax in fp32, products with the values, heads merged."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.composed import Composed
from chip.ops.pointwise import Pointwise
from chip.ops.softmax import Softmax
from chip.types import Op


class AlibiAttention(Composed):
    __slots__ = ()
    kind: ClassVar[str] = "alibi_attention"
    KERNELS: ClassVar[int] = 8

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
