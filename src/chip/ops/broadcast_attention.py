"""Attention of many heads to one key head, which no fused kernel takes.

So torch runs it where the caller does not say that heads are grouped. Everything in fp32: queries, keys and values
widened, queries and keys scaled, keys and values copied for every head, scores masked and normalised, rows without a
key looked for, result and scores narrowed, heads merged.
"""

from __future__ import annotations

from typing import ClassVar

from chip.ops.bmm import Bmm
from chip.ops.composed import Composed
from chip.ops.pointwise import Pointwise
from chip.ops.softmax import Softmax
from chip.types import Op


class BroadcastAttention(Composed):
    __slots__ = ()
    kind: ClassVar[str] = "broadcast_attention"
    KERNELS: ClassVar[int] = 22

    @property
    def compute(self) -> str:
        return "matmul_fp32"

    def parts(self) -> tuple[Op, ...]:
        n, rows, wide, dtype = self.scores, self.score_rows, self.wide, self.dtype
        queries, keys = rows * self.head_dim, self.batch * self.kv_heads * self.keys * self.head_dim
        widened = Pointwise(keys, wide * keys, dtype)
        copied = Pointwise(keys, keys * self.heads // self.kv_heads, "fp32")
        of_mask = self.batch * self.q_len * self.keys
        return (
            *[Pointwise(0, 1, dtype)] * 2,  # what hides and what does not
            Pointwise(of_mask // 2, of_mask, dtype),  # the mask, one byte each, made to be added
            Pointwise(queries, wide * queries, dtype),
            widened,
            widened,
            Pointwise(queries, queries, "fp32"),  # scaled
            Pointwise(keys, keys, "fp32"),
            Pointwise(queries, queries, "fp32"),  # laid out by head
            copied,
            self.product("fp32"),
            Pointwise(n, n, "fp32"),  # mask added
            Softmax(rows, self.keys, "fp32"),
            Pointwise(n, n // 4, "fp32"),  # whether a score is hidden, one byte each
            Pointwise(n // 4, rows, "fp32"),  # whether all of a row are
            Pointwise(0, 1, "fp32"),
            Pointwise(n, n, "fp32"),  # such rows set to zero
            copied,
            Bmm(self.batch * self.heads, self.q_len, self.head_dim, self.keys, "fp32"),
            Pointwise(wide * queries, queries, dtype),
            Pointwise(wide * n, n, dtype),
            self.merged(),
        )
