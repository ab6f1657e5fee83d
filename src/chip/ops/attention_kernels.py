"""How attention kernels cut a call into work for the SMs: what their base times are made of.

`TiledBase`: FlashAttention-3 and cuDNN on Hopper. Tiles of queries go through the keys; where tiles are too few to fill
the GPU the keys are split among several. `FlashBase`: FlashAttention-2, whose split keys a second kernel combines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any, ClassVar

from chip.ops.base_time import BaseTime, blend

WHOLE_HEADS = (64, 128, 256)  # sizes with kernels of their own; others are padded, larger ones have none
FEW_QUERIES = 64  # of all heads of a group: up to so many a tile is small, as in a decode step
KEY_BLOCK = 128  # keys that a tile takes at a time, of heads of up to 128
MOST_SPLITS, GRAPH_TOKENS = 32, 512  # parts that a graph of vLLM has room for, and tokens of the largest graph
FEW_BLOCKS, MORE = 4, 1.1  # of keys that are never cut outside of a graph; the little more
REMEMBERED = 512  # shapes of heads on all GPUs: a file of points has dozens
SHARP_TILES, SHARP_BLOCKS = 6, 4  # of the blend of work on the SMs and memory
OfSizes = Callable[[int, int, int], float]  # seconds of a batch, new tokens and keys
OfSizesAndBytes = Callable[[int, int, int, float, float], float]  # and of bytes that are attended to and copied
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
    stream_bytes_per_s: float = 8e12  # at which all tiles together take in keys and values, from cache or memory

    KERNELS: ClassVar[int] = 2  # the tiles, and the sum of their parts
    PACKS: ClassVar[bool] = True  # queries of all heads of a group share tiles (FlashAttention-3)
    LARGE: ClassVar[tuple[int, int]] = (192, 128)  # queries of a tile, of heads of up to 96 and of larger ones

    def seconds(self, op: Any) -> float:
        return self._of(*_shape(op))(op.batch, op.q_len, op.kv_len)

    def over(self, make: Callable[..., Any]) -> Callable[..., float]:
        return self._of(*_shape(make(1, 1, 1)))

    @lru_cache(maxsize=REMEMBERED)  # noqa: B019 (few bases, and as long as their points)
    def _of(self, heads: int, kv_heads: int, d: int, causal: bool, width: float) -> OfSizes:
        """For any sizes of an operator."""
        packs, sms = self.PACKS, self.sm_count
        group, of_heads = (heads // kv_heads, kv_heads) if packs else (1, heads)
        slower = 1.0 if d in WHOLE_HEADS else self.odd_heads
        rate, value_s = self.flop_per_s * _of_heads(self, d), width * d / self.bytes_per_s
        large = self.LARGE[0] if packs and d <= 96 else self.LARGE[1]
        key_block = KEY_BLOCK if d <= 160 else KEY_BLOCK // 2
        stream_s = width * d / self.stream_bytes_per_s
        few_s, large_s = (max(4 * rows * d / rate, stream_s) * sms for rows in (FEW_QUERIES, large))
        partly, tile_s, tile_keys, floor_s = min(1.0, self.imbalance), self.tile_s, self.tile_keys, self.floor_s

        def seconds(batch: int, q_len: int, kv_len: int) -> float:
            few = q_len * group <= FEW_QUERIES and (packs or q_len == 1)
            rows, key_s = (FEW_QUERIES, few_s) if few else (large, large_s)
            of_one, blocks = of_heads * -(-q_len * group // rows), -(-kv_len // key_block)
            tiles = batch * of_one
            parts = split(tiles, of_one, blocks, batch * q_len, sms)
            waves = tiles * parts / sms
            longest_s = tile_s + key_s * (-(-blocks // parts) * key_block + tile_keys)
            if q_len == 1 or not causal or parts > 1:
                tiles_s = longest_s * (waves + partly * (ceil(waves) - waves) if waves > 1.0 else 1.0)
            else:  # the longest tiles go first, so that the shortest are left for the last wave
                queries, past = min(q_len, rows / group), kv_len - q_len
                mean, least = past + min(q_len, (q_len + queries + key_block) / 2), past + queries
                mean_s = tile_s + key_s * (ceil(mean / key_block) * key_block + tile_keys)
                least_s = tile_s + key_s * (ceil(least / key_block) * key_block + tile_keys)
                tiles_s = max(longest_s, waves * mean_s + partly * (ceil(waves) - waves) * least_s)
            moved_s = value_s * batch * (kv_len * kv_heads + q_len * heads)
            return floor_s + slower * blend(tiles_s, moved_s, SHARP_TILES)

        return seconds


def split(tiles: int, of_one: int, blocks: int, tokens: int, sms: int) -> int:
    """Into how many parts FlashAttention-3 cuts the keys of a tile: an SM gets a little more than its share of all
    blocks of keys (`prepare_varlen_num_blocks_kernel`). `of_one`: tiles of one sequence."""
    most = MOST_SPLITS
    if tokens > GRAPH_TOKENS:
        most = 1 if blocks <= FEW_BLOCKS else flash_splits(of_one, blocks, sms)
    each = ceil(MORE * tiles * blocks / sms)
    return max(1, min(-(-blocks // each), most))


class CudnnBase(TiledBase):
    __slots__ = ()
    KERNELS: ClassVar[int] = 1
    PACKS: ClassVar[bool] = False  # each head has its own


class LatentBase(TiledBase):
    """Heads of 576: small tiles are all that an SM has room for."""

    __slots__ = ()
    LARGE: ClassVar[tuple[int, int]] = (FEW_QUERIES, FEW_QUERIES)


def _shape(op: Any) -> tuple[int, int, int, bool, float]:
    """What a model fixes: heads, those of keys and values, their mean size, causality, bytes of a key and its value by
    that size."""
    size = (op.head_dim + (op.v_head_dim or op.head_dim)) // 2
    return op.heads, op.kv_heads, size, op.causal, op.key_value_bytes / size


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

    PAGED: ClassVar[bool] = False
    SPLITS: ClassVar[bool] = True  # keys, where few queries leave SMs idle

    def seconds(self, op: Any) -> float:
        return self._of(*_shape(op))(op.batch, op.q_len, op.kv_len, *op.moved_bytes())

    def over(self, make: Callable[..., Any]) -> Callable[..., float]:
        """Bytes grow with the queries and the keys of each sequence."""
        seconds, (attended, copied) = self._of(*_shape(make(1, 1, 1))), make(1, 1, 1).moved_bytes()
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
        row_s, value_s = 4 * d / (self.flop_per_s * _of_heads(self, d)), width * head_dim / self.stream_bytes_per_s

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
