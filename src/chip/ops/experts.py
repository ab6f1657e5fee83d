"""Experts of a mixture as grouped matrix products: up (and gate), activation, down; plain, quantised, and as HF spells
them out.

Which experts are read depends on routing. With uniform routing `tokens` tokens touch
experts * (1 - (1 - top_k / experts) ^ tokens) of them on average: at batch 1 top_k, at large batch all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import erf, log2, sqrt
from typing import Any, ClassVar

from chip.dtypes import BYTES, OUT_BYTES
from chip.ops import BaseTime
from chip.ops.quantised import PACKED_SCALE_BYTES, SCALE_BYTES
from chip.types import ChipError, Cost, MatrixProduct

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
class MoeExperts(MatrixProduct):
    """Expert layers of a mixture of experts as grouped matrix products: up (and gate), activation, down."""

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


class MoeExpertsComposed(MoeExperts):
    """Expert layers as HF transformers runs them on a GPU: token-expert pairs sorted by expert and gathered, two
    grouped products, weighted and put back in order, 21 kernels as of transformers 5.17 (five of them mask the pairs of
    experts that live elsewhere, which later versions do only where there are such)."""

    __slots__ = ()
    kind: ClassVar[str] = "moe_experts_composed"
    KERNELS: ClassVar[int] = 21

    def cost(self) -> Cost:
        return self.products() + self.passes()

    def passes(self) -> Cost:
        """Sorting and counting the pairs is launches, hardly bytes."""
        inner, wide, width = self.pairs * self.intermediate, self.pairs * self.hidden, BYTES[self.dtype]
        up = inner * (2 if self.gated else 1)
        # gather and mask; mask, activation (and the gate's product); mask, weigh, put in order; sum
        read = 2 * wide + up + (3 if self.gated else 1) * inner + 3 * wide + wide
        written = 2 * wide + up + (2 if self.gated else 1) * inner + 3 * wide + self.tokens * self.hidden
        return Cost(0, read * width, written * width)

    @property
    def tile_rows(self) -> int:
        """Of torch's grouped product, by the mean of an expert."""
        return 64 if self.pairs // self.experts <= 128 else 128


@dataclass(frozen=True, slots=True)
class ScaledExperts(MoeExperts):
    """Expert layers whose weights and inputs are quantised (fp8, int8): grouped products with scales, the inputs of
    both products rounded by kernels of their own. Scales as in `scaled_linear`."""

    dtype: str = "fp8"
    block_n: int = 0
    block_k: int = 0
    group: int = 0
    per_tensor: bool = False

    kind: ClassVar[str] = "scaled_experts"

    def cost(self) -> Cost:
        """The products, the activation between them, and both inputs rounded."""
        rounded = self.tokens * self.hidden + self.pairs * self.intermediate
        quantise = Cost(0, rounded * OUT_BYTES[self.dtype], rounded * BYTES[self.dtype])
        return MoeExperts.cost(self) + quantise + Cost(0, self.experts_read * SCALE_BYTES * self.expert_scales, 0)

    @property
    def expert_scales(self) -> int:
        """Scales of one expert's matrices."""
        up = self._scales(self.intermediate, self.hidden)
        return (2 if self.gated else 1) * up + self._scales(self.hidden, self.intermediate)

    def _scales(self, n: int, k: int) -> int:
        return -(-n // (self.block_n or n)) * -(-k // (self.block_k or k))

    def varies(self) -> float:
        """Few shapes were measured: one draw tells more than none."""
        return 0.0

    def kernel_of(self, implementation: str) -> str:
        return implementation + (".block" if self.block_k else "")


@dataclass(frozen=True, slots=True)
class PackedExperts(MoeExperts):
    """Expert layers with narrow weights and 16-bit inputs (W4A16, mxfp4): the grouped products dequantise inside. A
    scale covers `group` weights of a row (0: the whole row); it has 16 bits, those of fp4 weights 8."""

    weight_dtype: str = "int4"
    group: int = 0
    zeros: bool = False

    kind: ClassVar[str] = "packed_experts"

    def cost(self) -> Cost:
        scale = 1 if self.weight_dtype == "fp4" else PACKED_SCALE_BYTES
        beside = scale + (BYTES[self.weight_dtype] if self.zeros else 0)
        return MoeExperts.cost(self) + Cost(0, self.experts_read * self.expert_scales * beside, 0)

    @property
    def expert_scales(self) -> int:
        """Scales of one expert's matrices."""
        up = self.intermediate * -(-self.hidden // (self.group or self.hidden))
        down = self.hidden * -(-self.intermediate // (self.group or self.intermediate))
        return (2 if self.gated else 1) * up + down

    def varies(self) -> float:
        """Few shapes were measured: one draw tells more than none."""
        return 0.0

    def kernel_of(self, implementation: str) -> str:
        return f"{implementation}.fp4" if self.weight_dtype == "fp4" else implementation

    def like_measured(self) -> PackedExperts | None:
        return self if self.gated else None
