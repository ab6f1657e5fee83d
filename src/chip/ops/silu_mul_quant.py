"""Gated activation silu(x) * y and rounding: one kernel, the result in `to`, with a dynamic scale for each `group` of a
row's values (0: for each row)."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.quantize import WithRounding
from chip.ops.silu_mul import SiluMul


class SiluMulQuant(WithRounding, SiluMul):
    __slots__ = ()
    kind: ClassVar[str] = "silu_mul_quant"
    PLAIN = SiluMul
    FLAT: ClassVar[bool] = False  # the largest magnitude is that of a row
