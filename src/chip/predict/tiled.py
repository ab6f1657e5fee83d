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
FEW_QUERIES = 64  # of all heads of a group: up to so many a tile is small, as in a decode step
KEY_BLOCK = 128
MOST_SPLITS = 32
FEATURES = 11
SHARP = 6  # of the blend of waves and memory: neither limit is quite sharp


@dataclass(frozen=True)
class Tiled:
    packs: bool  # queries of all heads of a group share tiles (FlashAttention-3), or each head has its own (cuDNN)
    tile_s: float  # start and end of a tile, ...
    tile_keys: float  # ... and keys that would take as long as what comes on top of that for larger tiles
    odd_heads: float  # how much longer head sizes take that are padded
    small_heads: float  # rates of heads of up to 64, 96 and 256 over that of 128
    middle_heads: float
    large_heads: float
    imbalance: float  # how much of the last, partly filled wave counts


def tiles(op: Attention, packs: bool) -> tuple[int, int]:
    """How many, and the queries of one."""
    group = op.heads // op.kv_heads
    if op.q_len * group <= FEW_QUERIES and (packs or op.q_len == 1):
        return op.batch * op.kv_heads, FEW_QUERIES
    rows = 192 if packs and op.head_dim <= 96 else 128
    if packs:
        return op.batch * op.kv_heads * -(-op.q_len * group // rows), rows
    return op.batch * op.heads * -(-op.q_len // rows), rows


def seconds(op: Attention, units: int, t: Tiled, flop_per_s: float, bytes_per_s: float) -> float:
    """Without the floor."""
    width, group = 2 * BYTES[op.dtype], op.heads // op.kv_heads
    count, rows = tiles(op, t.packs)
    keys: float = op.kv_len
    if op.q_len > 1 and op.causal:
        queries = min(op.q_len, rows / (group if t.packs else 1))
        keys = min(op.kv_len, op.kv_len - op.q_len + (op.q_len + queries + KEY_BLOCK) / 2)
    splits = min(max(1, units // count), max(1.0, keys / KEY_BLOCK), MOST_SPLITS)
    slower = 1.0 if op.head_dim in WHOLE_HEADS else t.odd_heads
    d = op.head_dim
    heads = t.small_heads if d <= 64 else t.middle_heads if d <= 96 else 1 if d <= 128 else t.large_heads
    key_s = max(4 * rows * d / (heads * flop_per_s), width * d / bytes_per_s) * units
    waves = max(1.0, count * splits / units)
    waves += min(1.0, t.imbalance) * (ceil(waves) - waves)
    tiles_s = waves * (t.tile_s + key_s * (keys / splits + t.tile_keys)) * slower
    memory_s = width * d * op.batch * (op.kv_len * op.kv_heads + op.q_len * op.heads) / bytes_per_s * slower
    return float((tiles_s**SHARP + memory_s**SHARP) ** (1 / SHARP))


def features(op: Attention, packs: bool, base_s: float) -> list[float]:
    count, rows = tiles(op, packs)
    asked = op.batch * op.heads * op.q_len
    return [
        log2(op.batch * op.kv_heads),
        log2(op.heads // op.kv_heads),
        op.head_dim,
        float(op.head_dim in WHOLE_HEADS),
        log2(op.q_len),
        log2(op.kv_len),
        log2(op.kv_len - op.q_len + 1),
        log2(count),
        log2(count * rows / asked),
        log2(base_s),
        float(op.q_len == 1),
    ]
