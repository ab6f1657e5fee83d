"""Attention over a compressed cache (DeepSeek V4): the latest tokens one by one, older ones several to an entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from chip.decoders import roles
from chip.decoders.formats import Matrix
from chip.dtypes import BYTES, Precision

ENTRY_BYTES = 584  # of the cache in vLLM: 448 values in fp8, 64 rotated ones in 16 bits, eight scales of one byte
SCALE_BYTES = 4  # of an indexer's key in fp8
OVERLAPPING = 4  # the ratio whose entries overlap: each is made of twice as many tokens


@dataclass(frozen=True, slots=True)
class CompressedAttn:
    """All heads read one vector for each entry, as key and as value. Queries and the output are of low rank."""

    heads: int
    head_dim: int
    rope_dim: int
    q_rank: int
    out_groups: int
    out_rank: int  # of each group of heads
    window: int  # tokens that are seen one by one
    ratio: int = 0  # tokens in an entry of the compressed cache; 0: there is none
    index_heads: int = 0  # they choose the best `index_keys` entries; 0: all are seen
    index_dim: int = 0
    index_keys: int = 0

    kv_heads: ClassVar[int] = 1

    @property
    def entry_dim(self) -> int:
        """Values of a token from which entries are made."""
        return self.head_dim * (2 if self.ratio == OVERLAPPING else 1)

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        yield Matrix(roles.Q_DOWN, self.q_rank, hidden)
        yield Matrix(roles.Q_UP, self.heads * self.head_dim, self.q_rank)
        yield Matrix(roles.KV_DOWN, self.head_dim, hidden)
        yield Matrix("o_down", self.out_groups * self.out_rank, self.heads * self.head_dim // self.out_groups)
        yield Matrix(roles.O_PROJ, hidden, self.out_groups * self.out_rank)
        if self.index_heads:
            yield Matrix("index_q", self.index_heads * self.index_dim, self.q_rank)

    def compressors(self, hidden: int) -> Iterator[Matrix]:
        """What makes entries, of the cache and of the indexer: values and their weights. These keep 16 bits."""
        if self.ratio:
            yield Matrix("compress", 2 * self.entry_dim, hidden)
        if self.index_heads:
            yield Matrix("index_k", 4 * self.index_dim, hidden)
            yield Matrix("index_weights", self.index_heads, hidden)

    def params(self, hidden: int) -> int:
        return sum(m.n * m.k for m in self.matrices(hidden)) + self.norm_params() + self._compressor_params(hidden)

    def _compressor_params(self, hidden: int) -> int:
        return sum(m.n * m.k for m in self.compressors(hidden))

    def norm_params(self) -> int:
        norms = self.q_rank + self.head_dim + self.heads  # with a sink for each head
        if self.ratio:
            norms += self.ratio * self.entry_dim + self.head_dim
        if self.index_heads:
            norms += self.ratio * 2 * self.index_dim + self.index_dim
        return norms

    def cache_bytes(self, tokens: int) -> float:
        """Of a sequence, the same on each GPU."""
        entries = tokens / self.ratio if self.ratio else 0.0
        indexed = self.index_dim + SCALE_BYTES if self.index_heads else 0
        return min(tokens, self.window) * ENTRY_BYTES + entries * (ENTRY_BYTES + indexed)

    def state_bytes(self, p: Precision, tp: int = 1) -> float:
        """Of the tokens that no entry is made of yet, in fp32: values and weights, the same on each GPU."""
        span = self.ratio * (2 if self.ratio == OVERLAPPING else 1)
        return span * 2 * (self.entry_dim + (2 * self.index_dim if self.index_heads else 0)) * BYTES["fp32"]
