"""Attention with sinks as HF's gpt-oss spells it: heads repeated, products scaled and masked, a sink joined to each
row, the largest subtracted, softmax, the sink left out of the products with the values, heads merged."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.composed import Composed
from chip.ops.pointwise import Pointwise
from chip.ops.softmax import Softmax
from chip.types import Op


class SinkAttention(Composed):
    __slots__ = ()
    kind: ClassVar[str] = "sink_attention"
    KERNELS: ClassVar[int] = 11

    def parts(self) -> tuple[Op, ...]:
        n, rows, dtype = self.scores, self.score_rows, self.dtype
        kept = self.batch * self.kv_heads * self.keys * self.head_dim
        repeated = Pointwise(kept, kept * (self.heads // self.kv_heads), dtype)
        joined = n + rows
        return (
            repeated,  # keys
            repeated,  # values
            self.product(dtype),
            Pointwise(n, n, dtype),  # scaled
            Pointwise(n, n, dtype),  # mask added
            Pointwise(n, joined, dtype),  # sinks joined
            Pointwise(joined, rows, dtype),  # the largest of each row
            Pointwise(joined, joined, dtype),  # subtracted
            Softmax(rows, self.keys + 1, dtype),
            self.weighted(),
            self.merged(),
        )
