"""Dense layer of two quantised operands (fp8, int8 or fp4): x is m x k, W is n x k, both with scales that are applied
inside the product. A weight scale covers `block_n` x `block_k` weights (0: the whole axis), a scale of x `group` of a
token's values (0: all of them; with `per_tensor` all tokens' together). The result has 16 bits."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.linear import ALIGNED, Linear
from chip.ops.quantize import Quantize
from chip.records import dataclass, replace
from chip.types import Cost, Op

SCALE_BYTES = 4
FP8_ROWS = (16, 64, 128)  # most rows of each of CUTLASS's fp8 kernels on Hopper but the largest, as vLLM chooses them


PUBLISHED = {("fp8", 0): "fp8", ("fp8", 128): "fp8_block", ("fp4", 16): "nvfp4"}  # format and values of a scale
DEEP_GEMM = "deepgemm"  # multiplies with scales of blocks only


@dataclass(frozen=True, slots=True)
class ScaledLinear(Linear):
    dtype: str = "fp8"
    block_n: int = 0
    block_k: int = 0
    group: int = 0
    per_tensor: bool = False

    kind: ClassVar[str] = "scaled_linear"

    def cost(self) -> Cost:
        plain = Linear.cost(self)
        of_weights = -(-self.n // (self.block_n or self.n)) * -(-self.k // (self.block_k or self.k))
        of_input = 1 if self.per_tensor else self.m * -(-self.k // (self.group or self.k))
        return plain + Cost(0, SCALE_BYTES * (of_weights + of_input), 0)

    def kernel_of(self, implementation: str) -> str:
        """Scales of blocks are another kernel."""
        if not self.block_k:
            return "cutlass" if implementation == DEEP_GEMM else implementation
        return f"{implementation}.block"

    def published(self) -> tuple[str, str]:
        form = PUBLISHED.get((self.weight_dtype or self.dtype, self.group), "")
        return ("linear", form) if form else ("", "")

    def base_of_published(self) -> ScaledLinear:
        """Without blocks: as the kernels were made that tables of others time, their scales cost next to nothing."""
        plain = self._of_any_scale()
        return replace(plain, block_n=0, block_k=0, group=0) if self.block_k else plain

    def from_published(self, found: Linear) -> ScaledLinear:
        return replace(self._of_any_scale(), m=found.m, n=found.n, k=found.k)

    def _of_any_scale(self) -> ScaledLinear:
        """Without what tables of others do not tell apart: all such products share their points."""
        return replace(self, bias=False, weight_dtype="", per_tensor=False)

    def rounded_before(self) -> Op | None:
        return Quantize(self.m, self.k, to=self.dtype, group=self.group)

    def place(self) -> tuple[float, ...]:
        """Products that take another kernel lie apart."""
        if self.dtype != "fp8" or self.block_k:
            return Linear.place(self)
        return *Linear.place(self), float(sum([self.m > most for most in FP8_ROWS]))

    def like_measured(self) -> ScaledLinear | None:
        if self.n % ALIGNED or self.k % ALIGNED:
            return None
        return replace(self, bias=False, weight_dtype="") if self.bias or self.weight_dtype == self.dtype else self
