"""What an operator's time depends on beside its roofline: numbers of tiles, waves and splits, on logarithmic axes.

The same functions serve the fit and the prediction. `units` is the number of SMs.
"""

from __future__ import annotations

from math import ceil, gcd, log2

from chip.dtypes import BYTES
from chip.ops.attention import Attention
from chip.ops.composed import KINDS, Composed
from chip.ops.linear import Linear
from chip.ops.masked_attention import MaskedAttention
from chip.ops.moe_experts import MoeExperts
from chip.ops.moe_router import MoeRouter
from chip.predict import experts
from chip.predict.flash import flash
from chip.types import ChipError, Cost, Op

TILES = ((64, 64), (64, 128), (128, 128), (128, 256), (256, 128))  # rows x columns a GEMM kernel computes at a time
ALIGNED = 8  # elements: odd widths take other kernels, several times slower, and are no neighbours of the rest
FEATURES = {  # how many there are
    "linear": 7 + 3 * len(TILES),
    **dict.fromkeys(("attention", "growing_attention"), 19),
    "masked_attention": 20,
    **dict.fromkeys(KINDS, 9),
    **dict.fromkeys(experts.EXPERT_KINDS, experts.EXPERT_FEATURES),
    **dict.fromkeys(experts.ROUTER_KINDS, experts.ROUTER_FEATURES),
}
MASKED_TILE = 128  # queries and keys that cuDNN's kernels take at a time
MASK_PIECE = 64  # elements of a mask's row, at most


def features(op: Op, cost: Cost, units: int) -> list[float]:
    if isinstance(op, Linear):
        return linear_features(op, units)
    if isinstance(op, Composed):
        return composed_features(op, cost)
    if isinstance(op, (Attention, MaskedAttention)):
        return attention_features(op, cost, units)
    if isinstance(op, MoeExperts):
        return experts.expert_features(op, cost, units)
    if isinstance(op, MoeRouter):
        return experts.router_features(op, cost)
    raise ChipError(f"{op.kind} has no features to learn from")


def linear_features(op: Linear, units: int) -> list[float]:
    m, n, k = op.m, op.n, op.k
    moved = m * k + n * k + m * n
    out = [log2(m), log2(n), log2(k), log2(m * n * k), log2(moved), log2(m * n), log2(m * n * k / moved)]
    for rows, columns in TILES:
        down = -(-m // rows)
        waves = down * -(-n // columns) / units
        out += (log2(waves), ceil(waves) / waves, down * rows / m)
    return out


def masked_attention_s(
    op: MaskedAttention, units: int, flop_per_s: float, bytes_per_s: float, copy_bytes_per_s: float
) -> float:
    """Heads copied for each query of a group, then the longer of whole waves of tiles and of reading every key."""
    width = BYTES[op.dtype]
    kept, copied = (2 * op.batch * heads * op.kv_len * op.head_dim * width for heads in (op.kv_heads, op.heads))
    read_s = ((copied if op.copies else kept) + 2 * op.batch * op.heads * op.q_len * op.head_dim * width) / bytes_per_s
    waves = ceil(-(-op.q_len // MASKED_TILE) * op.batch * op.heads / units)
    padded = 64 if op.head_dim <= 64 else 128 if op.head_dim <= 128 else 256
    tile_flops = 4 * MASKED_TILE * padded * (-(-op.kv_len // MASKED_TILE) * MASKED_TILE)
    products_s = waves * units * tile_flops / flop_per_s if op.q_len > 1 else 0.0
    copies_s = (kept + copied) / copy_bytes_per_s if op.copies else 0.0
    return copies_s + max(read_s, products_s)


def attention_features(op: Attention | MaskedAttention, c: Cost, units: int) -> list[float]:
    f = flash(op, units)
    waves, tile_waves = f.blocks / (2 * units), op.batch * f.heads * f.row_tiles / units
    out = [
        log2(op.batch * f.heads), log2(op.heads // op.kv_heads), f.width, log2(op.q_len), log2(op.kv_len),
        log2(c.flops), log2(c.bytes), log2(c.intensity), log2(f.parts), log2(f.blocks / units),
        ceil(waves) / waves, log2(f.keys_each), log2(ceil(f.blocks / units) * f.keys_each),
        ceil(tile_waves) / tile_waves, log2(ceil(tile_waves)), log2(f.queries / (f.row_tiles * f.row_tile)),
        float(op.q_len == 1), log2(op.kv_len - op.q_len + 1), float(f.parts > 1),
    ]  # fmt: skip
    if not isinstance(op, MaskedAttention):
        return out
    # the rows of a mask are as long as the cache: kernels read pieces of them as wide as where they all begin allows;
    # a single token's mask is one row, and meets every length in turn
    return [*out, log2(gcd(op.kv_len, MASK_PIECE)) if op.q_len > 1 else 0.0]


def composed_features(op: Composed, c: Cost) -> list[float]:
    aligned = op.q_len > 1 and op.keys % ALIGNED == 0  # single tokens meet every length in turn
    return [
        log2(op.batch * op.heads), log2(op.heads // op.kv_heads), op.head_dim, log2(op.q_len), log2(op.keys),
        log2(c.flops), log2(c.bytes), float(op.q_len == 1), float(aligned),
    ]  # fmt: skip
