"""Which tiles the wgmma rung takes for a product, and how many blocks divide k: a rule where nothing was tuned.

A product takes as many rounds as its blocks need on the SMs there are, and each block a time for each 64 of k: that of
its multiplications, or of bringing its tiles through L2. Sharing a tile fills SMs that would be idle, and costs a trip
of the sums through L2. The rates are an H200's in round numbers, from 320 timings at 128 to 1024 rows
(`benchmarks/native.py`, part `many`): there the rule's choice takes 0.5 % longer than the best config on average, 4 %
at most. `chip kernels tune hgemm --keep` overrules it for a shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

DEPTH = 64  # of k, a step
BAND = 8  # tile rows that are walked together
MOST_SPLITS = 8
FLOATS, COUNTERS = 1 << 23, 4096  # of the workspace: 32 MiB
SM_FLOPS_PER_NS = 5700.0  # dense bf16, of one SM
SM_L2_BYTES_PER_NS = 80.0  # of one SM, all of them asking
SM_SHARED_BYTES_PER_NS = 40.0  # the same for sums of a shared tile, which are written, waited for and read
MEMORY_BYTES_PER_NS = 3300.0
START_NS, ROUND_NS = 300.0, 170.0  # of a launch; of a tile: its first operands, its result


@dataclass(frozen=True, slots=True)
class Tile:
    """A variant of the rung: see the end of its file."""

    variant: int
    rows: int
    cols: int
    cluster: int
    rate: float  # share of the peak that its instructions can reach: narrow ones read more shared memory

    def ns(self, m: int, n: int, k: int, splits: int, sm_count: int) -> float:
        """A product's time by this rule."""
        down, across, steps = -(-m // (self.rows * self.cluster)), -(-n // self.cols), -(-k // DEPTH)
        rounds = -(-down * across * splits // (sm_count // self.cluster))
        multiplied = 2 * self.rows * self.cols * DEPTH / (SM_FLOPS_PER_NS * self.rate)
        brought = (self.rows + self.cols / self.cluster) * DEPTH * 2 / SM_L2_BYTES_PER_NS
        shared = (1 + splits) * self.rows * self.cols * 4 / SM_SHARED_BYTES_PER_NS if splits > 1 else 0.0
        walked = rounds * (-(-steps // splits) * max(multiplied, brought) + shared + ROUND_NS)
        return START_NS + max(walked, 2 * (m * k + n * k + m * n) / MEMORY_BYTES_PER_NS)

    def room(self, m: int, n: int, splits: int) -> bool:
        """Whether the workspace holds the sums of shared tiles."""
        tiles = -(-m // (self.rows * self.cluster)) * self.cluster * -(-n // self.cols)
        return splits == 1 or (2 * tiles <= COUNTERS and tiles * splits * self.rows * self.cols <= FLOATS)


TILES = (
    Tile(1, 128, 256, 2, 1.0),
    Tile(2, 128, 256, 1, 0.99),
    Tile(3, 256, 128, 2, 0.97),
    Tile(5, 128, 192, 2, 0.97),
    Tile(6, 128, 192, 1, 0.97),
    Tile(7, 128, 128, 2, 0.94),
    Tile(8, 128, 128, 1, 0.94),
    Tile(9, 128, 64, 1, 0.75),
)


@lru_cache(maxsize=4096)
def choose(m: int, n: int, k: int, sm_count: int) -> int:
    """The config of the wgmma rung: variant + 10 x band + 1000 x splits. At a tie the larger tile, the fewer splits."""
    ways = [(t, s) for s in range(1, MOST_SPLITS + 1) for t in TILES if t.room(m, n, s) and s <= -(-k // DEPTH)]
    tile, splits = min(ways, key=lambda way: way[0].ns(m, n, k, way[1], sm_count))
    return tile.variant + 10 * BAND + 1000 * splits


def fitting(config: int, m: int, n: int) -> int:
    """The same config with as many splits as the workspace has room for."""
    tile = next((t for t in TILES if t.variant == config % 10), TILES[0])
    splits = max(1, config // 1000)
    while not tile.room(m, n, splits):
        splits -= 1
    return config % 1000 + 1000 * splits
