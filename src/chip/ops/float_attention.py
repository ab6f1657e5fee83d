"""Attention as HF's GPT-J spells it: queries and keys widened, multiplied, scaled, masked and normalised in fp32, then
narrowed for the product with the values, heads merged."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.composed import Composed
from chip.ops.pointwise import Pointwise
from chip.ops.softmax import Softmax
from chip.types import Op


class FloatAttention(Composed):
    __slots__ = ()
    kind: ClassVar[str] = "float_attention"
    KERNELS: ClassVar[int] = 9

    def parts(self) -> tuple[Op, ...]:
        n, wide, dtype = self.scores, self.wide, self.dtype
        queries = self.score_rows * self.head_dim
        keys = self.batch * self.heads * self.keys * self.head_dim
        return (
            Pointwise(queries, wide * queries, dtype),
            Pointwise(keys, wide * keys, dtype),
            self.product("fp32"),
            Pointwise(n, n, "fp32"),  # scaled
            Pointwise(n, n, "fp32"),  # mask added
            Softmax(self.score_rows, self.keys, "fp32"),
            Pointwise(wide * n, n, dtype),  # narrowed
            self.weighted(),
            self.merged(),
        )
