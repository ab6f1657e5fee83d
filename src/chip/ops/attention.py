"""Attention of q_len new tokens over kv_len tokens (past and new): MHA, GQA and MQA, causal or not, windowed or not.

Causal means aligned at the end, as in a model with a cache: the last query sees every key. Only visible pairs cost
FLOPs, so a prefill of n tokens costs exactly what its n decode steps cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from chip.dtypes import BYTES
from chip.types import ChipError, Cost, Op, Seq


def visible_pairs(q_len: int, kv_len: int, causal: bool, window: int) -> int:
    """(query, key) pairs that attend. The i-th query (from 0) of a causal step sees kv_len - q_len + i + 1 keys."""
    if not causal:
        return q_len * kv_len
    first, last = kv_len - q_len + 1, kv_len
    if not window or last <= window:
        return q_len * (first + last) // 2
    if first >= window:
        return q_len * window
    growing = window - first  # queries that still see fewer keys than the window holds
    return growing * (first + window - 1) // 2 + (q_len - growing) * window


def visible_keys(q_len: int, kv_len: int, causal: bool, window: int) -> int:
    """Keys that any query of the step reads."""
    return min(kv_len, q_len + window - 1) if causal and window else kv_len


@dataclass(frozen=True, slots=True)
class Attention(Op):
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    q_len: int
    kv_len: int
    causal: bool = True
    window: int = 0  # 0: none
    v_head_dim: int = 0  # 0: as head_dim
    dtype: str = "bf16"

    kind: ClassVar[str] = "attention"

    def check(self) -> None:
        if self.heads % self.kv_heads:
            raise ChipError(f"attention: heads {self.heads} is not a multiple of kv_heads {self.kv_heads}")
        if self.causal and self.q_len > self.kv_len:
            raise ChipError(
                f"attention: kv_len {self.kv_len} counts past and new tokens, so it is at least q_len {self.q_len}"
            )

    def over(self, seq: Seq) -> Self:
        """The same attention for other sequences."""
        return type(self)(
            seq.count,
            self.heads,
            self.kv_heads,
            self.head_dim,
            seq.new,
            seq.new + seq.past,
            self.causal,
            self.window,
            self.v_head_dim,
            self.dtype,
        )

    def cost(self) -> Cost:
        width = BYTES[self.dtype]
        qk, v = self.head_dim, self.v_head_dim or self.head_dim
        if self.q_len == 1:  # a decode step, the case predicted most often
            pairs = keys = min(self.kv_len, self.window) if self.window and self.causal else self.kv_len
        else:
            pairs = visible_pairs(self.q_len, self.kv_len, self.causal, self.window)
            keys = visible_keys(self.q_len, self.kv_len, self.causal, self.window)
        queries = self.batch * self.q_len * self.heads
        return Cost(
            2 * self.batch * self.heads * pairs * (qk + v),
            (queries * qk + self.batch * keys * self.kv_heads * (qk + v)) * width,
            queries * v * width,
        )

    @property
    def compute(self) -> str:
        return "matmul_" + self.dtype

    @property
    def counted_flops(self) -> float:
        width = self.head_dim + (self.v_head_dim or self.head_dim)
        keys = visible_keys(self.q_len, self.kv_len, self.causal, self.window)  # a window's cache drops what is past it
        return 2 * self.batch * self.heads * self.q_len * keys * width
