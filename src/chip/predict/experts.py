"""Expert layers and their routers: two products over tiles of tokens, expert by expert, and passes over the pairs of
tokens and experts beside them. Tokens are routed uniformly, as `MoeExperts` counts the experts they read."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, erf, log2, sqrt

from chip.ops.moe_experts import MoeExperts
from chip.ops.moe_experts_composed import MoeExpertsComposed
from chip.ops.moe_router import MoeRouter
from chip.types import Cost

EXPERT_KINDS, ROUTER_KINDS = ("moe_experts", "moe_experts_composed"), ("moe_router", "moe_router_composed")
EXPERT_FEATURES, ROUTER_FEATURES = 15, 7
COLUMNS = 128  # of a tile
# (most tokens, rows of a tile): vLLM's where no others were tuned, by all tokens; those of torch's grouped product, by
# the mean of an expert
FUSED_ROWS = ((32, 16), (96, 32), (512, 64))
GROUPED_ROWS = ((128, 64),)
MOST_ROWS = 128
CERTAIN = 6.0  # standard deviations from the mean: no expert has more tokens than that


def seconds(op: MoeExperts, flop_per_s: float, bytes_per_s: float, copy_bytes_per_s: float) -> float:
    """The longer of reading experts and tokens and of multiplying whole tiles, then the passes beside it."""
    tile = _tile_rows(op)
    moved, passed = op.products().bytes, op.passes().bytes
    weight = (3 if op.gated else 2) * op.hidden * op.intermediate
    arithmetic_s = 2 * row_tiles(op.tokens, op.top_k / op.experts, op.experts, tile) * tile * weight / flop_per_s
    return max(moved / bytes_per_s, arithmetic_s) + passed / copy_bytes_per_s


def _tile_rows(op: MoeExperts) -> int:
    rows, known = (
        (op.pairs // op.experts, GROUPED_ROWS) if isinstance(op, MoeExpertsComposed) else (op.tokens, FUSED_ROWS)
    )
    return next((tile for most, tile in known if rows <= most), MOST_ROWS)


@lru_cache(maxsize=64)  # base and features of one operator ask in turn
def row_tiles(tokens: int, share: float, experts: int, rows: int) -> float:
    """Tiles of so many rows that the tokens of all experts fill on average, where each token goes to an expert with
    probability `share`: an expert has one more tile for each multiple of `rows` that its tokens exceed (a binomial
    number of them, taken as normal but at none)."""
    mean = tokens * share
    spread = sqrt(2 * mean * (1 - share)) or 1e-9
    surely = max(1, int((mean - CERTAIN * spread) / rows))
    filled = 1 - (1 - share) ** tokens if surely == 1 else float(surely)
    edge = surely * rows
    while edge < tokens and edge < mean + CERTAIN * spread:
        filled += (1 - erf((edge + 0.5 - mean) / spread)) / 2
        edge += rows
    return experts * filled


def expert_features(op: MoeExperts, cost: Cost, units: int) -> list[float]:
    share, read = op.top_k / op.experts, op.experts_read
    tiles = [row_tiles(op.tokens, share, op.experts, rows) for rows in (16, 64, 128)]
    padding = [log2(n * rows / op.pairs) for n, rows in zip(tiles, (16, 64, 128))]
    waves = [n * -(-2 * op.intermediate // COLUMNS) / units for n in tiles[1:]]
    return [
        log2(op.tokens), log2(op.experts), log2(op.top_k), log2(op.hidden), log2(op.intermediate),
        log2(op.pairs / read), log2(read), log2(cost.flops), log2(cost.bytes), *padding,
        *(log2(w) for w in waves), ceil(waves[1]) / waves[1],
    ]  # fmt: skip


def router_features(op: MoeRouter, cost: Cost) -> list[float]:
    even = op.experts & (op.experts - 1) == 0  # a power of two: choosing is one kernel then
    sizes = (op.tokens, op.experts, op.top_k, op.hidden, cost.flops, cost.bytes)
    return [*(log2(v) for v in sizes), float(even)]
