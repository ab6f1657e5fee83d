"""Expert layers of a mixture of experts as grouped matrix products: up (and gate), activation, down.

Which experts are read depends on routing. With uniform routing `tokens` tokens touch
experts * (1 - (1 - top_k / experts) ^ tokens) of them on average: at batch 1 top_k, at large batch all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import erf, log2, sqrt
from typing import Any, ClassVar

from chip.dtypes import BYTES, OUT_BYTES
from chip.ops.base_time import BaseTime
from chip.records import dataclass
from chip.types import ChipError, Cost, Op

# (most tokens, rows of a tile): of vLLM's Triton kernels where no others were tuned, by the tokens of a step
FUSED_ROWS = ((32, 16), (96, 32), (512, 64))
MOST_ROWS = 128
# (experts, intermediate size) that vLLM 0.26 has tiles tuned for in bf16 on an H200: names of files in its folder
# fused_moe/configs. Products of others run with its default tiles, a tenth slower where arithmetic sets the time. Other
# GPUs have lists of their own, which are not known here: this one stands for them.
TUNED = frozenset(
    (experts, size)
    for experts, sizes in {
        8: (1792, 2048, 3584, 4096, 7168, 14336),
        16: (1024, 2048),
        64: (320, 640, 1280, 2560),
        128: (192, 384, 512, 768, 1024),
        512: (64, 128, 256, 512),
    }.items()
    for size in sizes
)
TUNING_TOKENS = 256  # from which on experts are multiplied more than they are read
OTHER_TILES = 1.0  # how far apart the two lie
CERTAIN = 6.0  # standard deviations from the mean: no expert has more tokens than that


@dataclass(frozen=True, slots=True)
class ExpertsBase(BaseTime):
    """The longer of reading experts and tokens and of multiplying whole tiles, then the passes beside the products."""

    copy_bytes_per_s: float = 1.3e12

    def seconds(self, op: MoeExperts) -> float:
        tile = op.tile_rows
        weight = (3 if op.gated else 2) * op.hidden * op.intermediate
        filled = row_tiles(op.tokens, op.top_k / op.experts, op.experts // op.ranks, tile)
        arithmetic_s = 2 * filled * tile * weight / self.flop_per_s
        memory_s = op.products().bytes / self.bytes_per_s
        return self.floor_s + max(memory_s, arithmetic_s) + op.passes().bytes / self.copy_bytes_per_s

    def over(self, make: Callable[..., Any]) -> Callable[..., float]:
        """Straight between powers of two, as between measured points: stairs of tiles are of even routing."""
        node = lru_cache(maxsize=64)(lambda tokens: self.seconds(make(tokens)))

        def seconds(tokens: int) -> float:
            low = 1 << tokens.bit_length() - 1
            first = node(low)
            return first if low == tokens else first + (node(2 * low) - first) * (tokens / low - 1)

        return seconds


@lru_cache(maxsize=256)
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


@dataclass(frozen=True, slots=True)
class MoeExperts(Op):
    tokens: int
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    gated: bool = True
    dtype: str = "bf16"
    weight_dtype: str = ""
    ranks: int = 1  # GPUs that the experts lie on, each whole on one: `tokens` are those of all, the cost is one GPU's

    kind: ClassVar[str] = "moe_experts"
    ROUTED: ClassVar[bool] = True
    LEDGER: ClassVar[str] = "experts"

    def check(self) -> None:
        if self.top_k > self.experts:
            raise ChipError(f"moe_experts: top_k {self.top_k} is more than experts {self.experts}")
        if self.experts % self.ranks:
            raise ChipError(f"moe_experts: ranks {self.ranks} does not divide the {self.experts} experts")

    @property
    def experts_read(self) -> float:
        return self.experts / self.ranks * (1 - (1 - self.top_k / self.experts) ** self.tokens)

    def varies(self) -> float:
        """Standard deviation of how many experts a batch of tokens reads, over the mean."""
        n, k = self.experts, self.top_k
        unread, both = (1 - k / n) ** self.tokens, ((n - k) * (n - k - 1) / max(1, n * (n - 1))) ** self.tokens
        variance = n * unread + n * (n - 1) * both - (n * unread) ** 2
        return sqrt(max(0.0, variance)) / (n * (1 - unread))

    @property
    def pairs(self) -> float:
        """Of tokens and experts, on one GPU, where routing is even."""
        return self.tokens * self.top_k / self.ranks

    def cost(self) -> Cost:
        """The products, and the activation between them."""
        inner = self.pairs * self.intermediate * OUT_BYTES[self.dtype]
        return self.products() + Cost(0, (2 if self.gated else 1) * inner, inner)

    def products(self) -> Cost:
        """Of up (and gate) and down alone, each with its inputs, outputs and the experts that are read."""
        matrices = 3 if self.gated else 2
        weight = matrices * self.hidden * self.intermediate
        width, out = BYTES[self.dtype], OUT_BYTES[self.dtype]
        wide, inner = self.pairs * self.hidden, self.pairs * self.intermediate
        return Cost(
            2 * self.pairs * weight,
            (wide + inner) * width + self.experts_read * weight * BYTES[self.weight_dtype or self.dtype],
            ((matrices - 1) * inner + wide) * out,
        )

    def passes(self) -> Cost:
        """What runs beside the two products where they are kernels of their own: the activation, and each token's
        experts added up."""
        inner, wide, width = self.pairs * self.intermediate, self.pairs * self.hidden, OUT_BYTES[self.dtype]
        read = (2 if self.gated else 1) * inner + wide
        return Cost(0, read * width, (inner + self.tokens * self.hidden) * width)

    @property
    def compute(self) -> str:
        return "matmul_" + self.dtype

    @property
    def counted_flops(self) -> float:
        return self.cost().flops

    @property
    def tile_rows(self) -> int:
        return next((tile for most, tile in FUSED_ROWS if self.tokens <= most), MOST_ROWS)

    @classmethod
    def base_class(cls, kernel: str) -> type[BaseTime]:
        return ExpertsBase

    def place(self) -> tuple[float, ...]:
        tuned = self.tokens >= TUNING_TOKENS and self._is_tuned()
        return (
            log2(self.tokens) / 2,
            log2(self.experts / self.ranks) / 2,
            log2(self.pairs / self.experts_read) / 2,
            log2(self.hidden) / 2,
            log2(self.intermediate) / 2,
            OTHER_TILES if tuned else 0.0,
        )

    def _is_tuned(self) -> bool:
        plain = self.kind == MoeExperts.kind and BYTES[self.dtype] == 2 and self.weight_dtype in ("", self.dtype)
        return plain and (self.experts // self.ranks, self.intermediate) in TUNED

    def like_measured(self) -> MoeExperts | None:
        return self if self.gated and self.weight_dtype in ("", self.dtype) else None
