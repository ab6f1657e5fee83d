"""Attention as FlashAttention-3 and cuDNN run it on Hopper: tiles of queries go through the keys block after block, and
where tiles are too few to fill the GPU the keys are split among several.

The few numbers of `Tiled` are fitted to measurements; what is left to learn is smooth.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from chip.dtypes import BYTES
from chip.ops.attention import Attention

WHOLE_HEADS = (64, 128, 256)  # sizes with kernels of their own; others are padded
PACKED_QUERIES = 64  # of all heads of a group: up to so many share a tile, as in a decode step
MOST_SPLITS = 32
FEATURES = 10
SHARP = 6  # of the blend of waves and memory: neither limit is quite sharp


@dataclass(frozen=True)
class Tiled:
    tile_s: float  # start and end of a tile
    odd_heads: float  # how much longer head sizes take that are padded
    small_heads: float  # rate of heads of up to 64 over that of larger ones
    imbalance: float  # how much of the last, partly filled wave counts
    split_keys: float  # least keys of a split


def seconds(op: Attention, units: int, t: Tiled, flop_per_s: float, bytes_per_s: float) -> float:
    """Without the floor."""
    width, group = 2 * BYTES[op.dtype], op.heads // op.kv_heads
    packed = op.q_len * group <= PACKED_QUERIES
    rows = PACKED_QUERIES if packed else 2 * PACKED_QUERIES
    tiles = op.batch * (op.kv_heads if packed else op.heads * ceil(op.q_len / rows))
    keys = min(op.kv_len, op.kv_len - op.q_len + (op.q_len / 2 if op.causal else op.q_len) + PACKED_QUERIES)
    splits = min(max(1, units // tiles), max(1.0, keys / t.split_keys), MOST_SPLITS)
    slower = 1.0 if op.head_dim in WHOLE_HEADS else t.odd_heads
    rate = flop_per_s * (t.small_heads if op.head_dim <= WHOLE_HEADS[0] else 1.0) / units
    through = max(4 * rows * op.head_dim * keys / rate, width * op.head_dim * keys / (bytes_per_s / units)) * slower
    waves = max(1.0, tiles * splits / units)
    waves += min(1.0, t.imbalance) * (ceil(waves) - waves)
    moved = width * op.head_dim * op.batch * (op.kv_len * op.kv_heads + op.q_len * op.heads)
    return float(
        ((waves * (t.tile_s + through / splits)) ** SHARP + (moved / bytes_per_s * slower) ** SHARP) ** (1 / SHARP)
    )


def features(op: Attention, base_s: float) -> list[float]:
    return [
        log2(op.batch * op.kv_heads),
        log2(op.heads // op.kv_heads),
        op.head_dim,
        float(op.head_dim in WHOLE_HEADS),
        log2(op.q_len),
        log2(op.kv_len),
        log2(op.kv_len - op.q_len + 1),
        log2(op.batch * op.heads * ceil(op.q_len / (2 * PACKED_QUERIES))),
        log2(base_s),
        float(op.q_len == 1),
    ]
