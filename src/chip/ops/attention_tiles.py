"""FlashAttention-3 and cuDNN: how they cut a call into work for the SMs. Tiles of queries go through the keys; where
tiles are too few to fill the GPU the keys are split among several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any, ClassVar

from chip.ops import BaseTime, blend

WHOLE_HEADS = (64, 128, 256)  # sizes with kernels of their own; others are padded, larger ones have none
FEW_QUERIES = 64  # of all heads of a group: up to so many a tile is small, as in a decode step
KEY_BLOCK = 128  # keys that a tile takes at a time, of heads of up to 128
MOST_SPLITS, GRAPH_TOKENS = 32, 512  # parts that a graph of vLLM has room for, and tokens of the largest graph
FEW_BLOCKS, MORE = 4, 1.1  # of keys that are never cut outside of a graph; the little more
REMEMBERED = 512  # shapes of heads on all GPUs: a file of points has dozens
SHARP_TILES = 6  # of the blend of work on the SMs and memory
OfSizes = Callable[[int, int, int], float]  # seconds of a batch, new tokens and keys


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
        return self._of(*head_shape(op))(op.batch, op.q_len, op.kv_len)

    def over(self, make: Callable[..., Any]) -> Callable[..., float]:
        return self._of(*head_shape(make(1, 1, 1)))

    @lru_cache(maxsize=REMEMBERED)  # noqa: B019 (few bases, and as long as their points)
    def _of(self, heads: int, kv_heads: int, d: int, causal: bool, width: float) -> OfSizes:
        """For any sizes of an operator."""
        packs, sms = self.PACKS, self.sm_count
        group, of_heads = (heads // kv_heads, kv_heads) if packs else (1, heads)
        slower = 1.0 if d in WHOLE_HEADS else self.odd_heads
        rate, value_s = self.flop_per_s * head_rate(self, d), width * d / self.bytes_per_s
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


def head_shape(op: Any) -> tuple[int, int, int, bool, float]:
    """What a model fixes: heads, those of keys and values, their mean size, causality, bytes of a key and its value by
    that size."""
    size = (op.head_dim + (op.v_head_dim or op.head_dim)) // 2
    return op.heads, op.kv_heads, size, op.causal, op.key_value_bytes / size


def head_rate(base: Any, d: int) -> float:
    if d <= 64:
        return float(base.small_heads)
    return float(base.middle_heads if d <= 96 else 1.0 if d <= 128 else base.large_heads)


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
