"""Attention as FlashAttention-2 runs it: blocks of queries go through the keys; where they are too few to fill the GPU,
as in a decode step, the keys are cut into parts whose results a second kernel combines.

The few numbers of `Blocks` are fitted to measurements; what is left to learn is smooth.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from chip.dtypes import BYTES
from chip.ops.attention import Attention
from chip.ops.masked_attention import MaskedAttention

FLASH_ROWS = 64  # queries of a block where keys are cut; work is counted in such blocks when that is decided
KEY_STEP = 64  # keys that a block takes at a time
SHARP = 4  # of the blend of blocks and memory: neither limit is quite sharp


@dataclass(frozen=True)
class Blocks:
    block_s: float  # start and end of a block
    alone: float  # how much longer a block takes that has an SM to itself than two take that share it, a block
    combine_s: float  # the second kernel, ...
    part_s: float  # ... and each part it goes through
    imbalance: float  # how much of the last, partly filled wave counts
    small_heads: float  # rates of heads padded to 64, 96 and 256 over that of 128
    middle_heads: float
    large_heads: float
    stream_bytes_per_s: float  # at which all blocks together take in keys and values, from cache or memory


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


class Flash(NamedTuple):
    """How FlashAttention-2 cuts a call into blocks."""

    heads: int
    queries: int
    parts: int  # of the keys
    blocks: int
    keys_each: int  # that one block goes through
    row_tile: int
    row_tiles: int
    width: int  # head size, padded


@lru_cache(maxsize=512)  # base and features of one operator ask in turn, a fit asks for all again and again
def flash(op: Attention | MaskedAttention, units: int) -> Flash:
    group = op.heads // op.kv_heads
    # a decode step of grouped heads is turned into one of fewer heads with `group` queries
    heads, queries = (op.kv_heads, group) if op.q_len == 1 and group > 1 else (op.heads, op.q_len)
    keys = 256 if op.head_dim <= 64 else 128 if op.head_dim <= 128 else 64
    key_blocks = -(-op.kv_len // keys)
    blocks = op.batch * heads * -(-queries // FLASH_ROWS)
    parts = flash_splits(blocks, key_blocks, 2 * units)
    row_tile = 128 if op.head_dim <= 128 else 64
    return Flash(
        heads,
        queries,
        parts,
        blocks * parts,
        -(-key_blocks // parts) * keys,
        row_tile,
        -(-queries // row_tile),
        32 * -(-op.head_dim // 32),
    )


def seconds(op: Attention, moved: float, units: int, b: Blocks, flop_per_s: float, bytes_per_s: float) -> float:
    """Without the floor."""
    f = flash(op, units)
    width = 2 * BYTES[op.dtype]  # of a key and its value
    split = f.parts > 1
    rows = FLASH_ROWS if split else f.row_tile
    blocks = op.batch * f.heads * -(-f.queries // rows) * f.parts
    seen: float = op.kv_len
    if split:
        seen = min(f.keys_each, op.kv_len)
    elif op.q_len > 1 and op.causal:
        seen = op.kv_len - op.q_len + min(op.q_len, (op.q_len + rows) / 2)
    d = f.width
    heads = b.small_heads if d <= 64 else b.middle_heads if d <= 96 else 1 if d <= 128 else b.large_heads
    key_s = max(4 * rows * d / (heads * flop_per_s), width * op.head_dim / b.stream_bytes_per_s) * units
    through_s = key_s * ceil(seen / KEY_STEP) * KEY_STEP
    waves = max(1.0, blocks / units)
    waves += min(1.0, b.imbalance) * (ceil(waves) - waves)
    later = 0.0 if split else max(0.0, op.kv_len - seen)  # under a causal mask the last block sees most, and ends last
    blocks_s = (waves + b.alone - 1) * (b.block_s + through_s) + b.alone * key_s * later
    memory_s = moved / bytes_per_s
    combine_s = b.combine_s + b.part_s * f.parts if split else 0.0
    return float(combine_s + (blocks_s**SHARP + memory_s**SHARP) ** (1 / SHARP))
