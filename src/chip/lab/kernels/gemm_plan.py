"""Which tiles the wgmma rung takes for a product, and how many blocks divide k: a rule where nothing was tuned.

A product takes as many rounds as its blocks need on the SMs there are, and each block a time for each 64 of k: that of
its multiplications, or of bringing its tiles through L2. Sharing a tile fills SMs that would be idle, and costs a trip
of the sums through L2, or to the other block of a cluster. The rates are an H200's in round numbers, from 3,700 timings
at 128 to 2048 rows of fourteen products, started early: there the rule's choice takes 0.6 % longer than the best config
on average, 8 % at most. Those timings are not kept;
`benchmarks/native.py`, part `many`, makes them for five of the products. `chip kernels tune hgemm --keep` overrules the
rule for a shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

DEPTH = 64  # of k, a step
BAND = 8  # tile rows that are walked together
MOST_SPLITS = 8
FLOATS, COUNTERS = 1 << 23, 4096  # of the workspace: 32 MiB
SM_FLOPS_PER_NS = 6200.0  # dense bf16, of one SM
NARROW_COLS = 15.5  # what a tile of few columns loses, as if it had so many more: it reads A as often for less
THIN_RATE = 0.88  # of a ring of three stages
SM_L2_BYTES_PER_NS = 80.0  # of one SM, all of them asking
SHARED_B = 0.8  # what is left of B's bytes where two blocks share them
SM_CLUSTER_BYTES_PER_NS = 13.5  # sums sent to the other block of a cluster
SM_SHARED_BYTES_PER_NS = 35.0  # the same for sums of a shared tile, which are written, waited for and read
MEMORY_BYTES_PER_NS = 4600.0
START_NS, ROUND_NS = 1100.0, 40.0  # of a launch; of a tile: its first operands, its result


@dataclass(frozen=True, slots=True)
class Tile:
    """A variant of the rung: see the end of its file. A cluster has `high` blocks one above the other, which share what
    they read of B, for each of the `parts` of k."""

    variant: int
    rows: int
    cols: int
    high: int
    parts: int = 1
    thin: bool = False

    def ns(self, m: int, n: int, k: int, splits: int, sm_count: int) -> float:
        """A product's time by this rule."""
        down, across, steps = -(-m // (self.rows * self.high)), -(-n // self.cols), -(-k // DEPTH)
        rounds = -(-down * across * splits // (sm_count // (self.high * self.parts)))
        rate = SM_FLOPS_PER_NS * (THIN_RATE if self.thin else 1.0)
        multiplied = 2 * self.rows * (self.cols + NARROW_COLS) * DEPTH / rate
        brought = (self.rows + self.cols * (SHARED_B if self.high > 1 else 1.0)) * DEPTH * 2 / SM_L2_BYTES_PER_NS
        shared = 0.0
        if self.parts > 1:
            shared = self.rows // 2 * self.cols * 4 / SM_CLUSTER_BYTES_PER_NS
        elif splits > 1:
            shared = (1 + splits) * self.rows * self.cols * 4 / SM_SHARED_BYTES_PER_NS
        walked = rounds * (-(-steps // (self.parts * splits)) * max(multiplied, brought) + shared + ROUND_NS)
        return START_NS + max(walked, 2 * (m * k + n * k + m * n) / MEMORY_BYTES_PER_NS)

    def takes(self, m: int, n: int, k: int, splits: int) -> bool:
        """Whether every part of k has a step, and sums their room."""
        return self.parts * splits <= -(-k // DEPTH) and self.room(m, n, splits)

    def room(self, m: int, n: int, splits: int) -> bool:
        """Whether the workspace holds the sums of shared tiles."""
        tiles = -(-m // (self.rows * self.high)) * self.high * -(-n // self.cols)
        fits = 2 * tiles <= COUNTERS and tiles * splits * self.rows * self.cols <= FLOATS
        return splits == 1 or (self.parts == 1 and fits)


TILES = (
    Tile(1, 128, 256, 2), Tile(2, 128, 256, 1), Tile(3, 256, 128, 2), Tile(5, 128, 192, 2), Tile(6, 128, 192, 1),
    Tile(7, 128, 128, 2), Tile(8, 128, 128, 1), Tile(9, 128, 64, 1), Tile(10, 128, 224, 2), Tile(11, 128, 224, 1),
    Tile(12, 128, 160, 2), Tile(13, 128, 144, 2), Tile(14, 128, 112, 2), Tile(15, 128, 96, 2), Tile(16, 128, 96, 1),
    Tile(20, 128, 96, 1, 2), Tile(21, 128, 128, 1, 2), Tile(22, 128, 160, 1, 2), Tile(23, 128, 192, 1, 2),
    Tile(24, 128, 224, 1, 2, thin=True), Tile(25, 128, 256, 1, 2, thin=True),
)  # fmt: skip


@lru_cache(maxsize=4096)
def choose(m: int, n: int, k: int, sm_count: int) -> int:
    """A config of the wgmma rung: variant + 100 x band + 10000 x splits. At a tie the first tile, the fewer splits."""
    ways = [(t, s) for s in range(1, MOST_SPLITS + 1) for t in TILES if t.takes(m, n, k, s)]
    tile, splits = min(ways, key=lambda way: way[0].ns(m, n, k, way[1], sm_count))
    return tile.variant + 100 * BAND + 10000 * splits


def tile_of(config: int) -> Tile:
    return next((t for t in TILES if t.variant == config % 100), TILES[0])


def splits_of(config: int) -> int:
    return max(1, config // 10000)


def fitting(config: int, m: int, n: int, k: int) -> int:
    """The same config with as many splits as the workspace has room for; the first tile where k is too short for it."""
    if tile_of(config).parts > -(-k // DEPTH):
        return TILES[0].variant + 100 * BAND + 10000
    splits = splits_of(config)
    while not tile_of(config).room(m, n, splits):
        splits -= 1
    return config % 10000 + 10000 * splits
