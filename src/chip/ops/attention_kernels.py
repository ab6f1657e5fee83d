"""How attention kernels cut a call into work for the SMs: what their base times are made of.

`TiledBase`: FlashAttention-3 and cuDNN on Hopper. Tiles of queries go through the keys; where tiles are too few to fill
the GPU the keys are split among several. `FlashBase`: FlashAttention-2, whose split keys a second kernel combines.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil
from typing import Any, ClassVar

from chip.ops.base_time import BaseTime, blend
from chip.records import dataclass

WHOLE_HEADS = (64, 128, 256)  # sizes with kernels of their own; others are padded
FEW_QUERIES = 64  # of all heads of a group: up to so many a tile is small, as in a decode step
KEY_BLOCK = 128
MOST_SPLITS = 32
SHARP_TILES, SHARP_BLOCKS = 6, 4  # of the blend of work on the SMs and memory
FLASH_ROWS = 64  # queries of a block where keys are cut
KEY_STEP = 64  # keys that a block takes at a time


@dataclass(frozen=True, slots=True)
class TiledBase(BaseTime):
    tile_s: float = 1.5e-6  # start and end of a tile, ...
    tile_keys: float = 30.0  # ... and keys that would take as long as what comes on top of that for larger tiles
    odd_heads: float = 1.3  # how much longer head sizes take that are padded
    small_heads: float = 0.8  # rates of heads of up to 64, 96 and 256 over that of 128
    middle_heads: float = 0.9
    large_heads: float = 0.9
    imbalance: float = 0.7  # how much of the last, partly filled wave counts

    PACKS: ClassVar[bool] = True  # queries of all heads of a group share tiles (FlashAttention-3)

    def seconds(self, op: Any) -> float:
        return self._of(op.batch, op.q_len, op.kv_len, *_shape(op))

    def over(self, make: Callable[..., Any]) -> Callable[..., float]:
        shape = _shape(make(1, 1, 1))
        return lambda batch, q_len, kv_len: self._of(batch, q_len, kv_len, *shape)

    def _of(
        self, batch: int, q_len: int, kv_len: int, heads: int, kv_heads: int, d: int, causal: bool, width: float
    ) -> float:
        group = heads // kv_heads
        if q_len * group <= FEW_QUERIES and (self.PACKS or q_len == 1):
            count, rows = batch * kv_heads, FEW_QUERIES
        elif self.PACKS:
            rows = 192 if d <= 96 else 128
            count = batch * kv_heads * -(-q_len * group // rows)
        else:
            count, rows = batch * heads * -(-q_len // 128), 128
        keys: float = kv_len
        if q_len > 1 and causal:
            queries = min(q_len, rows / (group if self.PACKS else 1))
            keys = min(kv_len, kv_len - q_len + (q_len + queries + KEY_BLOCK) / 2)
        splits = min(max(1, self.sm_count // count), max(1.0, keys / KEY_BLOCK), MOST_SPLITS)
        slower = 1.0 if d in WHOLE_HEADS else self.odd_heads
        rate = self.flop_per_s * _of_heads(self, d)
        key_s = max(4 * rows * d / rate, width * d / self.bytes_per_s) * self.sm_count
        waves = max(1.0, count * splits / self.sm_count)
        waves += min(1.0, self.imbalance) * (ceil(waves) - waves)
        tiles_s = waves * (self.tile_s + key_s * (keys / splits + self.tile_keys)) * slower
        moved = width * d * batch * (kv_len * kv_heads + q_len * heads)
        return self.floor_s + blend(tiles_s, moved / self.bytes_per_s * slower, SHARP_TILES)


class CudnnBase(TiledBase):
    __slots__ = ()
    PACKS: ClassVar[bool] = False  # each head has its own


def _shape(op: Any) -> tuple[int, int, int, bool, float]:
    """What a model fixes: heads, those of keys and values, their size, causality, bytes of a key and its value."""
    return op.heads, op.kv_heads, op.head_dim, op.causal, 2 * op.cache_width_bytes


def _of_heads(base: Any, d: int) -> float:
    if d <= 64:
        return float(base.small_heads)
    return float(base.middle_heads if d <= 96 else 1.0 if d <= 128 else base.large_heads)


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

    def seconds(self, op: Any) -> float:
        sizes = (op.batch, op.heads, op.kv_heads, op.head_dim, op.q_len, op.kv_len)
        heads, queries, parts, keys_each = flash(*sizes, self.sm_count)
        width, split = 2 * op.cache_width_bytes, parts > 1
        d = 32 * -(-op.head_dim // 32)
        rows = FLASH_ROWS if split or op.head_dim > 128 else 128
        blocks = op.batch * heads * -(-queries // rows) * parts
        seen: float = op.kv_len
        if split:
            seen = min(keys_each, op.kv_len)
        elif op.q_len > 1 and op.causal:
            seen = op.kv_len - op.q_len + min(op.q_len, (op.q_len + rows) / 2)
        rate = self.flop_per_s * _of_heads(self, d)
        key_s = max(4 * rows * d / rate, width * op.head_dim / self.stream_bytes_per_s) * self.sm_count
        through_s = key_s * ceil(seen / KEY_STEP) * KEY_STEP
        waves = max(1.0, blocks / self.sm_count)
        waves += min(1.0, self.imbalance) * (ceil(waves) - waves)
        later = 0.0 if split else max(0.0, op.kv_len - seen)  # under a causal mask the last block sees most, ends last
        blocks_s = (waves + self.alone - 1) * (self.block_s + through_s) + self.alone * key_s * later
        attended, copied = op.moved_bytes()
        combine_s = self.combine_s + self.part_s * parts if split else 0.0
        longer_s = blend(blocks_s, attended / self.bytes_per_s, SHARP_BLOCKS)
        copies_s: float = copied / self.copy_bytes_per_s
        return self.floor_s + combine_s + copies_s + longer_s


@lru_cache(maxsize=4096)
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


@lru_cache(maxsize=4096)
def flash_splits(blocks: int, key_blocks: int, slots: int) -> int:
    """Into how many parts FlashAttention-2 cuts the keys so that small batches fill the GPU (its own heuristic: the
    fewest parts that reach 85 % of the best filling of the last wave)."""
    if blocks >= 0.8 * slots:
        return 1
    filling = {}
    for parts in range(1, min(128, slots, key_blocks) + 1):
        if parts == 1 or -(-key_blocks // parts) != -(-key_blocks // (parts - 1)):
            waves = blocks * parts / slots
            filling[parts] = waves / ceil(waves)
    best = max(filling.values())
    return next(parts for parts, share in filling.items() if share >= 0.85 * best)
