"""FlashAttention-2 and our own kernels: how they cut a call into work for the SMs. Split keys are combined by a second
kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any, ClassVar

from chip.ops import BaseTime, blend
from chip.ops.attention_tiles import REMEMBERED, flash_splits, head_rate, head_shape

SHARP_BLOCKS = 4  # of the blend of work on the SMs and memory
FLASH_ROWS = 64  # queries of a block where keys are cut
KEY_STEP = 64  # keys that a block takes at a time
OfSizesAndBytes = Callable[[int, int, int, float, float], float]  # of batch, new tokens, keys; bytes attended, copied


@dataclass(frozen=True, slots=True)
class FlashBase(BaseTime):
    copy_bytes_per_s: float = 2e12  # of a cache that is joined with the new token before it is read
    block_s: float = 1e-6  # start and end of a block
    alone: float = 1.3  # how much longer a block takes that has an SM to itself than two that share it, a block
    combine_s: float = 2.5e-6  # the second kernel, ...
    part_s: float = 1e-7  # ... and each part it goes through
    imbalance: float = 0.5  # how much of the last, partly filled wave counts
    small_heads: float = 0.8  # rates of heads padded to 64, 96 and 256 over that of 128
    middle_heads: float = 0.9
    large_heads: float = 0.8
    stream_bytes_per_s: float = 4e12  # at which all blocks together take in keys and values, from cache or memory

    PAGED: ClassVar[bool] = False
    SPLITS: ClassVar[bool] = True  # keys, where few queries leave SMs idle

    def seconds(self, op: Any) -> float:
        return self._of(*head_shape(op))(op.batch, op.q_len, op.kv_len, *op.moved_bytes())

    def over(self, make: Callable[..., Any]) -> Callable[..., float]:
        """Bytes grow with the queries and the keys of each sequence."""
        seconds, (attended, copied) = self._of(*head_shape(make(1, 1, 1))), make(1, 1, 1).moved_bytes()
        key, key_copied = (two - one for one, two in zip((attended, copied), make(1, 1, 2).moved_bytes()))
        query, query_copied = attended - key, copied - key_copied
        return lambda batch, q_len, kv_len: seconds(
            batch, q_len, kv_len, batch * (q_len * query + kv_len * key),
            batch * (q_len * query_copied + kv_len * key_copied),
        )  # fmt: skip

    @lru_cache(maxsize=REMEMBERED)  # noqa: B019
    def _of(self, heads: int, kv_heads: int, head_dim: int, causal: bool, width: float) -> OfSizesAndBytes:
        """For any sizes of an operator, and bytes that it moves."""
        sms, alone, d = self.sm_count, self.alone, 32 * -(-head_dim // 32)
        row_s, value_s = 4 * d / (self.flop_per_s * head_rate(self, d)), width * head_dim / self.stream_bytes_per_s

        def seconds(batch: int, q_len: int, kv_len: int, attended: float, copied: float) -> float:
            of_heads, queries, parts, keys_each = heads, q_len, 1, kv_len
            if self.SPLITS:
                of_heads, queries, parts, keys_each = flash(batch, heads, kv_heads, head_dim, q_len, kv_len, sms)
            split = parts > 1
            few = self.PAGED and queries <= FLASH_ROWS
            rows = FLASH_ROWS if split or few or (self.SPLITS and head_dim > 128) else 128
            seen: float = kv_len
            if split:
                seen = min(keys_each, kv_len)
            elif q_len > 1 and causal:
                seen = kv_len - q_len + min(q_len, (q_len + rows) / 2)
            key_s = max(rows * row_s, value_s) * sms
            waves = max(1.0, batch * of_heads * -(-queries // rows) * parts / sms)
            waves += min(1.0, self.imbalance) * (ceil(waves) - waves)
            later = 0.0 if split else max(0.0, kv_len - seen)  # under a causal mask the last block sees most, ends last
            through_s = self.block_s + key_s * ceil(seen / KEY_STEP) * KEY_STEP
            blocks_s = (waves + alone - 1) * through_s + alone * key_s * later
            combine_s = self.combine_s + self.part_s * parts if split else 0.0
            longer_s = blend(blocks_s, attended / self.bytes_per_s, SHARP_BLOCKS)
            return self.floor_s + combine_s + copied / self.copy_bytes_per_s + longer_s

        return seconds


class PagedFlashBase(FlashBase):
    """FlashAttention-2 over pages, as vLLM calls it: the kernel that cuts keys runs even where they are not cut
    (`force_split_kernel` for a paged cache in its flash_api.cpp), so that few queries fill small blocks."""

    __slots__ = ()
    PAGED: ClassVar[bool] = True


class OwnBase(FlashBase):
    """Our kernels: prompts as FlashAttention-2, but in blocks of 128 queries that always go through all their keys; of
    single tokens a program takes a key head and a share of its pages. They take as long as the longest share, or as all
    of them on the programs that run at once."""

    __slots__ = ()
    SPLITS: ClassVar[bool] = False
    PROGRAMS: ClassVar[int] = 2  # on an SM
    PAGE_TOKENS: ClassVar[int] = 64
    MOST_SHARES: ClassVar[int] = 64

    @lru_cache(maxsize=REMEMBERED)  # noqa: B019
    def _of(self, heads: int, kv_heads: int, head_dim: int, causal: bool, width: float) -> OfSizesAndBytes:
        several = FlashBase._of(self, heads, kv_heads, head_dim, causal, width)
        programs = self.PROGRAMS * self.sm_count
        page_s = self.PAGE_TOKENS * 2 * head_dim * width * programs / self.stream_bytes_per_s

        def seconds(batch: int, q_len: int, kv_len: int, attended: float, copied: float) -> float:
            if q_len > 1:
                return several(batch, q_len, kv_len, attended, copied)
            pairs, pages = batch * kv_heads, -(-kv_len // self.PAGE_TOKENS)
            shares = min(self.MOST_SHARES, pages, -(-programs // pairs))
            longest = max(-(-pages // shares), pairs * pages / programs)
            return self.floor_s + self.block_s + blend(longest * page_s, attended / self.bytes_per_s, SHARP_BLOCKS)

        return seconds


def flash(
    batch: int, heads: int, kv_heads: int, head_dim: int, q_len: int, kv_len: int, sm_count: int
) -> tuple[int, int, int, int]:
    """Heads, queries, parts of the keys, and keys that one block goes through. A decode step of grouped heads is turned
    into one of fewer heads with a group of queries each."""
    group = heads // kv_heads
    if q_len == 1 and group > 1:
        heads, q_len = kv_heads, group
    keys = 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64
    key_blocks = -(-kv_len // keys)
    parts = flash_splits(batch * heads * -(-q_len // FLASH_ROWS), key_blocks, 2 * sm_count)
    return heads, q_len, parts, -(-key_blocks // parts) * keys
