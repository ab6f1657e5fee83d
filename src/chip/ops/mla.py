"""Multi-head latent attention in its absorbed form (DeepSeek decode): every head reads one shared latent cache.

Keys are the latent of `latent` values plus `rope_dim` rotated ones; values are the latent itself. The products that
absorb the up-projections into query and output are separate batched products in the program.
"""

from __future__ import annotations

from typing import ClassVar

from chip.dtypes import BYTES
from chip.ops.attention import visible_pairs
from chip.records import dataclass
from chip.types import ChipError, Cost, Op, Seq


@dataclass(frozen=True, slots=True)
class Mla(Op):
    batch: int
    heads: int
    latent: int
    rope_dim: int
    q_len: int
    kv_len: int
    causal: bool = True
    dtype: str = "bf16"

    kind: ClassVar[str] = "mla"

    def check(self) -> None:
        if self.causal and self.q_len > self.kv_len:
            raise ChipError(
                f"mla: kv_len {self.kv_len} counts past and new tokens, so it is at least q_len {self.q_len}"
            )

    def over(self, seq: Seq) -> Mla:
        return Mla(
            seq.count, self.heads, self.latent, self.rope_dim, seq.new, seq.new + seq.past, self.causal, self.dtype
        )

    def cost(self) -> Cost:
        width = BYTES[self.dtype]
        qk, v = self.latent + self.rope_dim, self.latent
        pairs = visible_pairs(self.q_len, self.kv_len, self.causal, 0)
        queries = self.batch * self.q_len * self.heads
        return Cost(
            2 * self.batch * self.heads * pairs * (qk + v),
            (queries * qk + self.batch * self.kv_len * qk) * width,
            queries * v * width,
        )

    @property
    def compute(self) -> str:
        return "matmul_" + self.dtype

    @property
    def counted_flops(self) -> float:
        return 2 * self.batch * self.heads * self.q_len * self.kv_len * (2 * self.latent + self.rope_dim)
