"""Gated activation of the two halves of a merged projection, where they lie: silu(x[:, :cols]) * x[:, cols:].

The halves are slices, so that torch takes kernels without vector loads. Also stands for gelu(x) * y.
"""

from __future__ import annotations

from typing import ClassVar

from chip.ops.elementwise import Elementwise


class SiluMulHalves(Elementwise):
    __slots__ = ()
    kind: ClassVar[str] = "silu_mul_halves"
    KERNELS: ClassVar[int] = 2
    FLOPS: ClassVar[int] = 5
    READS: ClassVar[int] = 3  # one half; then its activation and the other half
    WRITES: ClassVar[int] = 2
