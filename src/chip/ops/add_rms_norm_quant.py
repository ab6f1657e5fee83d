"""Residual addition, RMS normalisation and rounding: one kernel, the result in `to`, with a dynamic scale for each
`group` of a row's values (0: for each row)."""

from __future__ import annotations

from typing import ClassVar

from chip.ops.add_rms_norm import AddRmsNorm
from chip.ops.quantize import WithRounding


class AddRmsNormQuant(WithRounding, AddRmsNorm):
    __slots__ = ()
    kind: ClassVar[str] = "add_rms_norm_quant"
    PLAIN = AddRmsNorm
